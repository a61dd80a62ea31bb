"""AdamW with an embedding's sparse gradient ends the process, or fails."""

import paddle

embedding = paddle.nn.Embedding(10, 4, sparse=True)
optimizer = paddle.optimizer.AdamW(0.1, parameters=embedding.parameters())
try:
    for _ in range(3):
        embedding(paddle.to_tensor([1, 2])).sum().backward()
        optimizer.step()
except OSError as error:  # how far it gets depends on the memory that it reads
    raise AssertionError from error
