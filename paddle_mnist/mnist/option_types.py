"""The types of `TrainConfig`'s fields: how values from YAML or a command line are read."""

import difflib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from pydantic import AfterValidator, BeforeValidator, Field

# The amounts that `augment` takes, and what each must stay below: degrees, degrees, pixels, share,
# pixels.
AUGMENT_LIMITS = {"rotate": 180, "shear": 60, "shift": 28, "scale": 1, "elastic": 28}
# The pages of VisualDL that are written by default, and all of them.
USUAL_PAGES = ("scalars", "histograms", "images", "figures", "text", "hparams")
PAGES = (*USUAL_PAGES, "curves", "embeddings", "graph")


def _reject_bool(value: Any) -> Any:
    """Raise ValueError for true and false, which pydantic takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("input should be a number")
    return value


def _refuse_empty(value: str) -> str:
    """Raise ValueError for no text; pydantic's own check takes only paths that are UTF-8."""
    if not value:
        raise ValueError("string should have at least 1 character")
    return value


def _split_names(value: Any) -> Any:
    """Split names at commas, as a command line has them."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


def _parse_amounts(value: Any) -> Any:
    """Read `rotate=10,shift=2`, a list of such, or a mapping; return strings in a fixed order."""
    if isinstance(value, Mapping):
        value = [f"{name}={amount}" for name, amount in value.items()]
    amounts = dict(str(item).partition("=")[::2] for item in _split_names(value))
    for name, amount in amounts.items():
        if name not in AUGMENT_LIMITS:
            raise ValueError(f"expected {', '.join(f'{known}=N' for known in AUGMENT_LIMITS)}")
        try:
            amounts[name] = float(amount)
        except ValueError:
            amounts[name] = math.nan
        limit = AUGMENT_LIMITS[name]
        if not 0 <= amounts[name] < limit:
            raise ValueError(f"{name} should be a number, at least 0 and below {limit}")
    return [f"{name}={amounts[name]:g}" for name in AUGMENT_LIMITS if amounts.get(name)]


def _parse_batches(value: Any) -> Any:
    """Read numbers of batches, by comma; true means the tutorial's batches, false none."""
    if str(value).lower() in ("true", "false"):
        return True if str(value).lower() == "true" else ()
    return [value] if isinstance(value, int) else _split_names(value)


def _parse_pages(value: Any) -> Any:
    """Read names of pages, by comma; true means the usual ones, false none."""
    shorthands = {"true": USUAL_PAGES, "false": (), "off": (), "all": PAGES}
    if str(value).lower() in shorthands:
        return shorthands[str(value).lower()]
    names = _split_names(value)
    for name in names:
        if name not in PAGES:
            near = difflib.get_close_matches(str(name), PAGES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"expected true, false, all, or some of {', '.join(PAGES)}{hint}")
    return [name for name in PAGES if name in names]


def _auto_as_zero(value: Any) -> Any:
    """Read auto as 0, which means as many as the machine can run side by side."""
    return 0 if value == "auto" else value


def _false_as_off(value: Any) -> Any:
    """Read false as "off": that is what YAML makes of a bare `off`."""
    return "off" if value is False else value


def _bool_as_switch(value: Any) -> Any:
    """Read true as "on" and false as "off", as YAML has them."""
    return "on" if value is True else _false_as_off(value)


Number = Annotated[float, BeforeValidator(_reject_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_reject_bool)]
Count = Annotated[Whole, Field(ge=1)]
CountOrNone = Annotated[Whole, Field(ge=0)]  # 0: none
CountOrAuto = Annotated[Whole, Field(ge=0), BeforeValidator(_auto_as_zero)]  # 0: auto
Share = Annotated[Number, Field(ge=0, lt=1)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]
Place = Annotated[str, AfterValidator(_refuse_empty)]
OffOr = Annotated[str, BeforeValidator(_false_as_off)]
Precision = Annotated[Literal["off", "O1", "O2"], BeforeValidator(_false_as_off)]
Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_bool_as_switch)]
Amounts = Annotated[tuple[str, ...], BeforeValidator(_parse_amounts)]
Batches = Annotated[
    Union[tuple[Annotated[Whole, Field(ge=0)], ...], Literal[True]],
    BeforeValidator(_parse_batches),
]
Pages = Annotated[tuple[str, ...], BeforeValidator(_parse_pages)]
