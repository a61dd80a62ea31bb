"""Reads YAML files: numbers and repeated keys as YAML 1.2 has them, everything else as PyYAML."""

import re
from pathlib import Path
from typing import Any

import yaml

from paddle_mnist.errors import ConfigError
from paddle_mnist.system.text import decode

# What both versions of YAML read as the same number. YAML 1.1, which PyYAML implements, reads 0123
# as 83 and 1:30 as 90; such a value stays text, which the type of its option reads or refuses, as
# it does on a command line. What PyYAML writes as a number is one here, too.
_NUMBERS = {
    "int": (r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"([-+]?[0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
}
_NAMES = ("bool", "null", "merge")  # which keep the meaning that they have in YAML 1.1


class _RepeatedKeyError(Exception):
    """A key is given twice in one mapping."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the numbers of YAML 1.2, which refuses a repeated key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[tuple[str, str], int] = {}
        # `!!map 5` gives another node, which PyYAML refuses
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                first = lines.setdefault((key.tag, key.value), line)
                if first != line:
                    raise _RepeatedKeyError(f"line {line}: {key.value} is on line {first} already")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag.rpartition(":")[2] in _NAMES]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, (_pattern, _first) in _NUMBERS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), list(_first)
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the names and values in a YAML file. Raises ConfigError."""
    try:
        loader = _Loader(decode(Path(path).read_bytes()))
        try:
            values = loader.get_single_data()
        finally:
            loader.dispose()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a YAML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error.reason}; save it as UTF-8") from error
    except _RepeatedKeyError as error:
        raise ConfigError(f"{path}, {error}; expected every key once") from error
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
    return values
