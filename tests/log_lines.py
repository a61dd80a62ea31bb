"""The form of the lines of a training's log."""

import re

LINE = re.compile(
    r"epoch \d+/\d+ step \d+/\d+ lr \d\.\d{5} loss \d+\.\d{4} acc \d\.\d{4} "
    r"reader_cost \d+\.\d{4}s batch_cost \d+\.\d{4}s ips \d+ samples/s eta \d\d:\d\d:\d\d"
)
