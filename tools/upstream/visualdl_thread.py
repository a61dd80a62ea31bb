"""VisualDL writes in a thread, whose errors the program does not see."""

import tempfile
import threading

import visualdl

before = threading.active_count()
with visualdl.LogWriter(tempfile.mkdtemp()) as writer:
    writer.add_scalar("loss", 1.0, 0)
    assert threading.active_count() == before
