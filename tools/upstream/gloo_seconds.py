"""gloo waits 30 s in an exchange, whatever the time limit of the group."""

import time

import paddle
import paddle.distributed as dist


def exchange():
    dist.init_parallel_env()
    time.sleep(40 * dist.get_rank())
    try:
        dist.all_reduce(paddle.ones([1]))
    except RuntimeError as error:
        raise AssertionError from error


if __name__ == "__main__":
    dist.spawn(exchange, nprocs=2, backend="gloo")
