"""Read YAML files, with errors in one line."""

from pathlib import Path
from typing import Any

import yaml

from paddle_mnist.errors import ConfigError
from paddle_mnist.system.regular_files import MAX_JSON, read_bytes


def read_yaml(path: Path, may_be_pipe: bool = False) -> dict[str, Any]:
    """Return the names and values in a YAML file. Raises ConfigError.

    may_be_pipe: read whatever the user names, as `-c <(...)` does; else only a regular file.
    """
    try:
        data = Path(path).read_bytes() if may_be_pipe else read_bytes(path, MAX_JSON)
        text = data.decode("utf-8-sig")  # a byte order mark is allowed
        values, node = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a YAML file") from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ConfigError(
            f"{path}: not UTF-8 (byte {error.start} is 0x{byte:02x}); save it as UTF-8"
        ) from error
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:  # `!!int x`, `[[[[...`
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: not YAML ({reason}); expected lines of 'field: value'"
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: found a {type(values).__name__}; expected a mapping, lines of 'field: value'"
        )
    names = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    if len(values) < len(names):  # of several, PyYAML takes the last
        repeated = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{path}: {repeated} is given several times; expected every field once")
    return values
