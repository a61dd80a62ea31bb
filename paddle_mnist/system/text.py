"""Decodes text that a user wrote."""


def decode(data: bytes) -> str:
    """Decode text in UTF-8, with or without a byte order mark. Raises UnicodeDecodeError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        error.reason = f"not UTF-8 (byte {error.start} is 0x{data[error.start]:02x})"
        raise
