"""The summary of `REPRODUCTION.md` in Chinese: what was claimed, and what came of it."""

import re
import statistics
from collections.abc import Mapping
from typing import Any

from reproduction.accuracy import FIRST_CLAIM, interval
from reproduction.checkpoints import same_bits
from reproduction.costs import medians
from reproduction.ladder import CHOSEN_BY, TARGET, choice, not_told, steps_up, without_first

Report = Mapping[str, Any]


NAMES = {
    "verbatim": "教程原来的循环",
    "without": "不用",
    "with": "使用",
    "constant": "从不衰减",
    "stepped": "逐批衰减",
    "plain": "不用仿射变换",
    "affine": "仿射变换",
    "smaller affine": "较小的仿射变换",
    "larger affine": "较大的仿射变换",
    "less decay": "权重衰减 1e-4",
    "more decay": "权重衰减 1e-3",
    "higher rate": "学习率 0.2",
    "batch 32": "批大小 32",
    "label smoothing": "标签平滑 0.05",
    "dropout": "随机失活 0.1",
    "ema": "权重滑动平均",
    "affine, 40 epochs": "仿射变换 40 轮",
    "smaller affine, 40 epochs": "较小的仿射变换 40 轮",
    "sgd": "SGD",
    "momentum": "Momentum",
    "adagrad": "Adagrad",
    "adam": "Adam",
    **{f"{n},000": f"{n},000 张" for n in (24, 30, 36, 42, 48)},
    "cosine": "余弦学习率",
    "shifts": "只平移",
    "20 epochs": "20 轮",
    "40 epochs": "40 轮",
    "together": "一并使用：较小的仿射变换、批大小 32、权重滑动平均、40 轮",
    "best": "最好的配方",
    "default": "配方 default",
    "U(-1, 1), the tutorial's": "教程的 U(-1, 1)",
    "never, as in the document": "从不调用，学习率停在",
    "after each batch": "每批调用，最后为",
    "as they are": "原图",
    "noise of 0.1": "噪声 0.1",
    "noise of 0.3": "噪声 0.3",
    "noise of 0.5": "噪声 0.5",
    "inverted": "反色",
    "`save` of its `Trainer`, the file": "教程 Trainer 的 save",
    "`train(model)` of its part two, the caller's net": "教程的 train(model)",
    "`Trainer.save` here, the file": "本项目的 Trainer.save",
    **{f"shifted by {n} pixel{'s' * (n > 1)} in x and y": f"平移 {n} 像素" for n in (1, 2, 4)},
    **{f"rotated by {n} degrees": f"旋转 {n} 度" for n in (10, 20, 40)},
}


def _named(name: str) -> str:
    return NAMES.get(name, name)


def _scores(report: Report, split: str = "eval") -> str:
    """Mean, spread and seeds of each row."""
    parts = []
    for name, one in report.items():
        found = one[f"{split}_acc"]
        spread = f" ± {statistics.stdev(found):.2%}" if len(found) > 1 else ""
        parts.append(f"{_named(name)} {statistics.mean(found):.2%}{spread}（{len(found)} 个种子）")
    return "；".join(parts)


def _claimed(report: Report) -> str:
    titles = {"verbatim": _named("verbatim"), "adam": "本项目的配方 tutorial"}
    return _scores({titles[name]: one for name, one in report.items()})


def _initialization(report: Report) -> str:
    dead = [_named(way) for way, one in report.items() if max(one["valid_acc"]) < 0.2]
    first = next(iter(report.values()))
    whole = first["whole"]
    return (
        f"教程的首步损失为 {first['losses'][0]:.0f}，{len(first['losses'])} 步后"
        f"第二个卷积的 20 个通道中有输出的至多 {max(first['awake'])} 个；停在随机水平的初始化："
        + ("、".join(dead) or "无")
        + f"；训练满教程的 {whole['steps']:,} 步之后，它在验证集上为 "
        + " 至 ".join(f"{chosen(whole['valid_acc']):.1%}" for chosen in (min, max))
    )


def _ladder(report: Report) -> str:
    base, chance, gaps = steps_up(report)
    told = [f"{_named(name)} {gap:+.2%}" for name, gap in gaps.items() if abs(gap) > chance]
    return (
        f"种子 1 在验证集上，与仿射变换（{base:.2%}）相比，差别超出随机范围（{chance:.2%}）的有："
        + ("、".join(told) or "无")
    )


def _fewest(report: Report) -> str:
    means = {name: statistics.mean(one["valid_acc"]) for name, one in report.items()}
    enough = next((name for name, mean in means.items() if mean >= FIRST_CLAIM), None)
    judged = f"平均达到的最少为 {_named(enough)}" if enough else "都没有达到"
    return f"{judged}：{_scores(report, 'valid')}"


def _finalists(report: Report) -> str:
    best, first = choice(report)
    alike = not_told(first, best, [name for name in first if name != best])
    untold = f"（与 {'、'.join(map(_named, alike))} 的差别可能只是随机）" if alike else ""
    return (
        f"按种子 1 至 {CHOSEN_BY}，验证集上平均最高的是 {_named(best)}{untold}；"
        f"全部种子：{_scores(report, 'valid')}"
    )


def _leaders(report: Report) -> str:
    parts = (
        f"{_named(name)} {statistics.mean(found):.2%}（{len(found)} 个种子）"
        for name, found in without_first(report).items()
    )
    return f"验证集上，不计用来挑选的种子 1：{'；'.join(parts)}"


def _best(report: Report) -> str:
    (one,) = report.values()
    met = "达到" if statistics.mean(one["eval_acc"]) >= TARGET else "未达到"
    low, high = interval(one["eval_acc"])
    return f"平均{met}目标 {TARGET:.2%}：{_scores(report)}，95 % 区间 {low:.2%} 至 {high:.2%}"


def _default(report: Report) -> str:
    (one,) = report.values()
    return f"{_scores(report)}，最差 {min(one['eval_acc']):.2%}"


def _race(report: Report) -> str:
    two, one, ours = (way["broken"] / way["looks"] for way in report.values())
    return (
        f"两个进程同时保存到一个路径时，{two:.1%} 的读取失败，"
        f"只有一个进程直接写入时为 {one:.1%}；本项目为 {ours:.1%}"
    )


def _averages(report: Report) -> str:
    off = max(abs(mean - report["counted"]) for mean in report["mean_of_means"].values())
    return (
        f"批大小不能整除 {report['images']:,} 时，各批平均值的平均与逐个计数最多相差 {off:.3%}；"
        "教程的批大小 100 可以整除"
    )


def _pattern(report: Report) -> str:
    return (
        f"{report['steps']} 步的训练只设秒数时保存 {report['saved']} 次，而不是每步一次；"
        f"只保留 1 个时，查看 {report['looks']:,} 次，每次都至少有 {report['least']} 个检查点；"
        "文件时间最新的是 "
        f"{report['by_mtime']}，本项目取 {report['newest']}"
    )


def _resumed(report: Report) -> str:
    plain, *ours = map(same_bits, report.values())
    return (
        f"本项目被杀死后续训与不中断的训练{_same(all(ours))}（打乱顺序、轮次中途也在内）；"
        f"教程的做法（飞桨本身，轮次末尾，顺序不变）：{_same(plain)}"
    )


def _same(is_so: bool) -> str:
    return "逐位相同" if is_so else "不同"


def _everyone(report: Report) -> str:
    _, every, share = report.values()
    alone, all_, shared = (statistics.median(way["seconds"]) for way in report.values())
    return (
        f"每个进程都读全部数据：样本数是各取一份时的 {every['samples'] / share['samples']:.1f} 倍，"
        f"步数为 {every['steps']:,} 与 {share['steps']:,}；与单进程相比，一个轮次用时 "
        f"{all_ / alone:.2f} 倍，各取一份时为 {shared / alone:.2f} 倍"
    )


def _globals(report: Report) -> str:
    return "；".join(
        f"{_named(way)}：训练所得 {statistics.mean(one['trained']):.1%}，"
        f"留下的 {statistics.mean(one['kept']):.1%}"
        for way, one in report.items()
    )


def _costs(report: Report) -> str:
    found = medians(report).values()
    return f"最慢的一项每张图像用时为最快的 {max(found) / min(found):.1f} 倍"


def _calibration(report: Report) -> str:
    before, after = report["ways"].values()
    least, most = report["ece_by_chance"]
    return (
        f"期望校准误差为 {before['ece']:.2%}"
        f"（完全校准的网络因偶然也会有 {least:.2%} 至 {most:.2%}），"
        f"用温度 {after['temperature']:.2f} 校正后为 {after['ece']:.2%}"
    )


def _robustness(report: Report) -> str:
    return f"原图 {report['as they are']:.2%}；低于 90 % 的有：" + (
        "、".join(f"{_named(name)} {share:.1%}" for name, share in report.items() if share < 0.9)
        or "无"
    )


def _mistakes(report: Report) -> str:
    images = report["images"]
    return (
        f"{report['seeds']} 个种子中多数都认错的图像有 {len(images)} 张，其中 "
        f"{sum(one['agreed'] for one in images)} 张所有种子给出同一个别的答案；目测 "
        f"{sum(one['by_eye'] == 'arguable' for one in images)} 张的标签可商榷"
    )


# Of each claim: its title, and what its report says.
SAID = {
    "claimed": ("教程：Adam 0.01、5 轮可达 98.6 %", _claimed),
    "optimizers": ("教程建议尝试四种优化器，学习率均为 0.01", _scores),
    "l2": ("教程：L2 正则化 1e-5 防止过拟合", _scores),
    "rate": ("教程：学习率从 0.01 衰减到 0.001", _scores),
    "ladder": ("这个网络能有多好：逐项改动", _ladder),
    "best": ("这个网络能有多好：最好的配方", _best),
    "finalists": ("哪一个是最好的配方", _finalists),
    "leaders": ("领先的两项改动是否真的更好", _leaders),
    "half": ("最好的配方：40 轮是否比 20 轮好", _scores),
    "fewest": ("每张图像只看一次，多少张可达 98.6 %", _fewest),
    "default": ("五个轮次、不做增强，能达到多少", _default),
    "initialization": ("教程：用 U(-1, 1) 初始化的网络可以训练", _initialization),
    "averages": ("教程：各批准确率的平均就是准确率", _averages),
    "names": (
        "ModelArts 示例：按文件名排序，最后一个就是最新的检查点",
        lambda report: f"按名字会取 {report['by_name']}，实际最新的是 {report['newest']}",
    ),
    "resumed": ("教程：恢复训练后损失“大致相同”", _resumed),
    "pattern": ("检查点模式（MindSpore 的 CheckpointConfig）的三个陷阱", _pattern),
    "everyone": ("教程的多卡循环使训练更快", _everyone),
    "race": ("教程：保存网络的同时可以读取同一个文件", _race),
    "unstepped": (
        "教程：不调用 scheduler.step()，学习率也会衰减",
        lambda report: "；".join(f"{_named(way)}：{rate:g}" for way, rate in report.items()),
    ),
    "globals": ("教程：保存的、留给调用者的就是训练所得的权重", _globals),
    "partly": (
        "Fluid：参数可加载到任何已有的网络",
        lambda report: (
            f"飞桨不报错，只给出 {len(report['warnings'])} 个警告，准确率由 "
            f"{statistics.mean(report['trained']):.1%} 变为 "
            f"{statistics.mean(report['loaded']):.1%}；本项目"
            + ("拒绝并列出差异" if "refused" in report else "也不报错")
        ),
    ),
    "costs": ("各项改动的用时", _costs),
    "calibration": ("网络的把握恰如其分", _calibration),
    "robustness": ("网络能承受怎样的图像", _robustness),
    "mistakes": ("最好的网络错在哪里", _mistakes),
}


# By the first word of a verdict.
JUDGED = {"Confirmed": "**属实。** ", "Refuted": "**不属实。** ", "Undecided": "**未定。** "}


def summary(claims, reports: Mapping[str, Report]) -> str:
    lines = ["平均值 ± 标准差。", "", "| 项目 | 结论 |", "|---|---|"]
    for one in claims:
        title, said = SAID[one.id]
        text = "尚未测完"
        if one.measured(reports[one.id]):
            word = re.match(r"\w+", one.judged(reports[one.id]))[0]
            text = JUDGED.get(word, "") + said(reports[one.id])
        lines.append(f"| [{title}](#{one.id}) | {text} |")
    return "\n".join(lines) + "\n"
