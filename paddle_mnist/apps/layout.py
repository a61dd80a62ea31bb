"""The layout of the page to draw on, as gradio components."""

from typing import Any, NamedTuple

from paddle_mnist.apps.answer_card import answer_card
from paddle_mnist.apps.answers import PICTURES, Picture
from paddle_mnist.apps.drawing_pad import drawing_pad, picture_bytes

# For the page's head, since gradio rewrites what it is given as CSS. What has nothing to show yet
# takes no room. On a phone the margins are narrow, so that the answer is in sight below a canvas as
# wide as the screen.
STYLE = """
<style>
.gradio-container .main { max-width: 68rem !important; margin: auto; }
.gradio-container h1 { margin: 0; font-size: 1.75rem; }
.html-container { padding: 0 !important; }
.tabs { gap: 0; }
.tab-wrapper { margin: 0 !important; }
.tabitem { padding: 12px 0 0 !important; border: 0 !important; }
#probabilities:not(:has(.confidence-set)), #layers .column:not(:has(img)) { display: none; }
#layers h3 { margin: 8px 0 4px; }
#layers .column { gap: 8px; }
#layers .maps { border: 0; background: none; }
#layers .icon-button-wrapper { display: none; }
#layers button { cursor: default; }
#layers :is(img, .image-frame, button) { width: 100%; height: auto; }
#layers img { image-rendering: pixelated; border-radius: 8px; object-fit: contain; }
@media (max-width: 640px) {
  .gradio-container .main { padding: 8px !important; }
  .contain > .column, .contain > .column > .row { gap: 8px; }
  .gradio-container h1 { font-size: 1.25rem; }
  .tabitem { padding-top: 8px !important; }
}
</style>
"""


class Components(NamedTuple):
    """Those that events connect. shown: one for each field of an `Answer`, in their order."""

    drawing: Any
    picture: Any
    shown: list[Any]


def lay_out(gradio: Any, say: Any) -> Components:
    """Lay out the page inside `gradio.Blocks`. say: the `gradio.I18n` of the page's `TEXTS`."""
    gradio.Markdown("# " + say("title"))
    with gradio.Row():
        with gradio.Column(), gradio.Tabs():
            with gradio.Tab(say("draw")):
                drawing = drawing_pad(gradio)
            with gradio.Tab(say("picture")):
                picture = _picture(gradio, say)
        with gradio.Column():
            words = answer_card(gradio)
            probabilities = gradio.Label(
                label=say("probabilities"),
                num_top_classes=10,
                show_heading=False,
                elem_id="probabilities",
            )
    with gradio.Row(elem_id="layers"):
        pictures = [_captioned(gradio, say, name) for name in PICTURES]
    return Components(drawing, picture, [words, probabilities, *pictures])


def _picture(gradio: Any, say: Any) -> Any:
    """Return a field for a picture's file."""
    picture = gradio.Image(
        label=say("picture"),
        type="filepath",
        image_mode=None,  # read here, as every picture is
        sources=["upload"],
        buttons=[],
    )
    # gradio would open the picture itself and say only "Error" where it cannot.
    picture.preprocess = _sent_picture
    return picture


def _sent_picture(image: Any) -> Picture:
    """Return what a `gradio.Image` was sent: the uploaded file's path, or a data URL's bytes."""
    if image is None:
        return None
    return image.path or picture_bytes(image.url)


def _captioned(gradio: Any, say: Any, name: str) -> Any:
    """Return an image below its title and a sentence about it."""
    with gradio.Column(min_width=200):
        gradio.Markdown(say(name))
        return gradio.Image(
            label=name,
            show_label=False,
            interactive=False,
            buttons=[],  # one of them sends it elsewhere, and all cover it
            elem_classes="maps",
        )
