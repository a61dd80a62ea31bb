"""gloo waits 30 s in an exchange, whatever the time limit of the group."""

import time

import paddle
import paddle.distributed as dist


def exchange():
    dist.init_parallel_env()
    if dist.get_rank():
        time.sleep(40)
    try:
        dist.all_reduce(paddle.ones([1]))
        print("fixed" if not dist.get_rank() else "", end="")
    except Exception:
        print("still there" if not dist.get_rank() else "", end="")


if __name__ == "__main__":
    dist.spawn(exchange, nprocs=2, backend="gloo")
