"""Files of AI Studio's form, three pairs of lists in JSON: the data's own, or made here."""

import gzip
import json
from pathlib import Path

from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.images import Images
from paddle_mnist.mnist.sources import Source, find_source
from paddle_mnist.system.files import write_atomically
from paddle_mnist.system.lock import locked


def json_file(name: str) -> Path:
    """Return the AI Studio file that the data comes from. Raises ConfigError for other sources."""
    source = find_source(name)
    if not _is_json(source):
        raise ConfigError(f"data is {source}; expected an AI Studio JSON file; name it with --data")
    return source.files[0].resolve()


def as_json(data: Images, folder: Path) -> Path:
    """Return the AI Studio file that the data comes from, or one that is made in the folder."""
    source = find_source(data.path)
    if _is_json(source):
        return source.files[0].resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data.name}-{data.hash[:16]}.json.gz"
    with locked(path.with_name(f"{path.name}.lock")):
        if not path.exists():
            lists = [
                (split.pixels(slice(None)).reshape(len(split), -1).tolist(), split.labels.tolist())
                for split in data.splits.values()
            ]
            write_atomically(path, gzip.compress(json.dumps(lists).encode(), 1))
    return path


def _is_json(source: Source) -> bool:
    return len(source.files) == 1 and ".json" in source.files[0].suffixes
