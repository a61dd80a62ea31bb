"""Decodes text that a user wrote, and names the encoding of what is not UTF-8."""


def decode(data: bytes) -> str:
    """Decode text in UTF-8, with or without a byte order mark.

    The reason of the UnicodeDecodeError that it raises for other text names the encoding that it
    probably has.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        error.reason = f"not UTF-8 (byte {error.start} is 0x{data[error.start]:02x})"
        if encoding := _probable_encoding(data):
            error.reason = f"not UTF-8 but probably {encoding}"
        raise
    if "\0" in text and (encoding := _probable_encoding(data)):
        raise UnicodeDecodeError("utf-8", data, 0, 1, f"not UTF-8 but probably {encoding}")
    return text


def _probable_encoding(data: bytes) -> str:
    """Return the name of the encoding of a text that is not UTF-8; "" if it cannot be told."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
        return "UTF-16"
    try:
        data.decode("gb2312")  # GBK's usual characters: GBK itself takes most of Latin-1, too
        return "GBK"
    except UnicodeDecodeError:
        return ""
