"""The texts of the page to draw on, in English and in Chinese."""

LANGUAGES = ("en", "zh")

TEXTS = {
    "title": ("Which digit is it?", "这是哪个数字？"),
    "draw": ("Draw", "手写"),
    "here": ("Choose the brush, and draw a digit", "选择画笔，写一个数字"),
    "picture": ("Picture", "图片"),
    "waiting": (
        "Draw a digit. The net answers after each stroke.",
        "请写一个数字，每写一笔都会识别一次。",
    ),
    "shapes": (
        "several shapes; expected one digit",
        "图中有多个互不相连的图形，应只有一个数字",
    ),
    "answer": ("Probability of each digit", "各数字的概率"),
    "words": (
        "{digit}, probability {probability:.1%}{score}",
        "{digit}，概率 {probability:.1%}{score}",
    ),
    "score": (", score {:.2f}", "，数字得分 {:.2f}"),
    "layers": ("What the net sees", "模型看到的图像"),
    "pixels": ("Input: scaled and centred as MNIST's", "输入：按 MNIST 的方式缩放和居中"),
    "conv1": ("First convolution, conv1", "第一个卷积层 conv1"),
    "conv2": ("Second convolution, conv2", "第二个卷积层 conv2"),
}

# Why no digit is read, in Chinese, by the `kind` of a `Reading`; its error is in English.
REASONS = {
    "blank": "没有笔迹，应有一个数字",
    "empty": "文件为空，应是一张图片",
    "format": "不支持这种格式，请另存为 JPEG 或 PNG",
    "damaged": "图片已损坏或不完整",
    "frames": "文件中有多张图片，请只保存需要的一张",
    "size": "图片太小、太大或过于狭长",
    "digit": "疑似非数字",
}
