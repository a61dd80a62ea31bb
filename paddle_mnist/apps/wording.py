"""The texts of the page to draw on, in English and in Chinese."""

import json
import re
from typing import Any

LANGUAGES = ("en", "zh")

TEXTS = {
    "title": ("Which digit is it?", "这是哪个数字？"),
    "draw": ("Draw", "手写"),
    "picture": ("Picture", "图片"),
    "probabilities": ("Probability of each digit", "各数字的概率"),
    "pixels": (
        "### What the net sees\n"
        "The digit, cut out, scaled to 20×20 pixels and centred in 28×28, as MNIST's are.",
        "### 模型的输入\n"
        "裁出的数字缩放到 20×20 像素，再按重心居中放入 28×28 的图像，与 MNIST 的做法相同。",
    ),
    "conv1": (
        "### First convolution, conv1\n"
        "Each of its 20 maps answers to one small pattern, such as an edge in one direction.",
        "### 第一个卷积层 conv1\n"
        "20 张特征图各对应一种局部模式，例如某个方向的边缘；越亮表示响应越强。",
    ),
    "conv2": (
        "### Second convolution, conv2\n"
        "Each of its 20 maps combines those patterns over a larger part of the digit.",
        "### 第二个卷积层 conv2\n"
        "20 张特征图各由前一层的模式组合而成，感受野更大，覆盖数字更大的一部分。",
    ),
    # of the parts that have a script of their own
    "canvas": (
        "Drawing area: draw a digit with a mouse, finger or pen. Ctrl+Z undoes, Delete clears.",
        "绘图区：用鼠标、手指或手写笔写一个数字。Ctrl+Z 撤销，Delete 清除。",
    ),
    "here": ("Draw a digit here", "在这里写一个数字"),
    "undo": ("Undo", "撤销"),
    "clear": ("Clear", "清除"),
    "examples": ("Examples", "示例"),
    "example": ("Example", "示例"),
    "answer": ("Answer", "识别结果"),
    "waiting": (
        "The net answers while you draw.",
        "边写边识别。",
    ),
}

# The sentences of an answer, and what they are in Chinese. Others stay as they are.
_SENTENCES = (
    (r"(\d), probability ([\d.]+%)", r"\1，概率 \2"),
    (r", score ([\d.]+)", r"，数字得分 \1"),
    (r" unsure: (\d) or (\d)", r"；不太确定：\1 或 \2"),
    (r"draw a digit\.", "请写一个数字。"),
    (r"no answer within (\d+) s; .*", r"\1 秒内没有结果，请重试或换一张较小的图片。"),
    (r"(\d+) shapes; expected one digit", r"图中有 \1 个互不相连的图形，应只有一个数字"),
    (
        r"probably not one digit \(score ([\d.]+); a digit has ([\d.]+) or more\)",
        r"疑似非数字（得分 \1，数字的得分不低于 \2）",
    ),
    (r"blank.*", "没有笔迹，应有一个数字"),
    (r"0 bytes; .*", "文件为空，应是一张图片"),
    (r"not a picture; expected one of (.*)", r"不是图片，支持的格式：\1"),
    (r"an SVG drawing; .*", "这是 SVG 矢量图，请另存为 PNG"),
    (r"damaged or cut off .*", "图片已损坏或不完整"),
    (r"(\d+) pictures in one file; .*", r"文件中有 \1 张图片，请只保存需要的一张"),
    (r"more than ([\d,]+) bytes; .*", r"文件超过 \1 字节，请缩小"),
    (r"more pixels than ([\d,]+); .*", r"图片超过 \1 个像素，请缩小"),
    (r"([\d,]+ x [\d,]+) pixels; expected at most ([\d,]+)", r"图片为 \1 像素，最多 \2 个像素"),
    (
        r"([\d,]+ x [\d,]+) pixels; expected at least (\d+ x \d+)(?:, .*? (\d+) times .*)?",
        r"图片为 \1 像素，至少应为 \2，且不能过于狭长",
    ),
)


def in_language(words: str, language: str) -> str:
    """Return the sentence of an answer, which is in English, in a language of LANGUAGES."""
    if language == "zh":
        for pattern, chinese in _SENTENCES:
            words = re.sub(pattern, chinese, words, flags=re.IGNORECASE)
    return words


def language_of(request: Any) -> str:
    """Return the language of LANGUAGES in which gradio shows the page to a browser.

    request: a `gradio.Request`, or None. gradio knows Chinese as zh-CN and zh-TW.
    """
    accepted = request.headers.get("accept-language", "") if request else ""
    return "zh" if accepted.lower().startswith(("zh-cn", "zh-tw")) else "en"


def translations(gradio: Any) -> Any:
    """Return TEXTS as a `gradio.I18n`, which chooses by the browser's language."""
    return gradio.I18n(**_by_language())


def with_words(javascript: str) -> str:
    """Put a constant `words` before a script: TEXTS in the language that gradio chose."""
    return (
        f"const words = {json.dumps(_by_language())}"
        f"[document.documentElement.lang.startsWith('zh') ? 'zh' : 'en'];\n{javascript}"
    )


def _by_language() -> dict[str, dict[str, str]]:
    return {
        language: {name: words[place] for name, words in TEXTS.items()}
        for place, language in enumerate(LANGUAGES)
    }
