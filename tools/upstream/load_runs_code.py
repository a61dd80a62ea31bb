"""paddle.load runs the code that a file contains."""

import contextlib
import os
import pickle  # noqa: TID251
import tempfile

import paddle

folder = tempfile.mkdtemp()
file, made = os.path.join(folder, "hostile.pdparams"), os.path.join(folder, "made")
with open(file, "wb") as opened:
    pickle.dump(type("Code", (), {"__reduce__": lambda self: (os.mkdir, (made,))})(), opened)
with contextlib.suppress(Exception):  # a refusal
    paddle.load(file)  # noqa: TID251
assert not os.path.exists(made)
