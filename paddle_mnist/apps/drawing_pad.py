"""A canvas to draw on in the browser, as a gradio component whose value is the drawing.

gradio's own `Sketchpad` is an image editor: clearing it puts the brush away, and it needs WebGL.
"""

import base64
from typing import Any

from paddle_mnist.apps.wording import with_words

SIDE = 280  # pixels of the drawing that is sent
SHARP = 1120  # pixels of the one that is shown, enough for a phone's screen
PEN = 0.05  # of the side, as MNIST's strokes are about as wide

# Digits to click, as SVG paths in a square of 100, a path a stroke.
EXAMPLES = {
    2: ["M27 30 C32 6 72 8 70 34 C68 56 40 68 26 86 C40 80 58 92 76 84"],
    4: ["M40 10 C37 28 31 44 22 57 C42 54 60 54 80 56", "M63 32 C63 52 60 72 58 92"],
    8: ["M64 22 C50 4 26 16 36 36 C44 50 70 56 70 74 C70 96 30 94 32 74 C34 56 66 48 68 28 L64 22"],
}


def _example(digit: int, strokes: list[str]) -> str:
    paths = "".join(f'<path d="{stroke}"/>' for stroke in strokes)
    return (
        f'<button type="button" name="example" value="{digit}">'
        f'<svg viewBox="0 0 100 100" aria-hidden="true">{paths}</svg></button>'
    )


_HTML = f"""
<div class="paper">
  <canvas width="{SHARP}" height="{SHARP}" role="img" tabindex="0"></canvas>
  <span aria-hidden="true"></span>
</div>
<div class="tools">
  <button type="button" name="undo"></button>
  <button type="button" name="clear"></button>
  <div role="group">
    <small aria-hidden="true"></small>
    {"".join(_example(digit, strokes) for digit, strokes in EXAMPLES.items())}
  </div>
</div>
"""

# As wide as a phone, but never so high that the answer below is out of sight. A finger that draws
# must not scroll the page: touch-action. On a dark page the paper is dark and the ink is light.
_CSS = """
.paper, .tools { width: min(100%, 26rem, max(13rem, 100svh - 14rem)); margin: auto; }
.paper { position: relative; }
canvas {
  display: block; width: 100%; aspect-ratio: 1; touch-action: none; cursor: crosshair;
  user-select: none; border-radius: 12px; box-shadow: 0 0 0 1px #d4d4d8;
}
canvas:focus-visible, button:focus-visible { outline: 3px solid #2563eb; outline-offset: 2px; }
.dark & canvas { filter: invert(.88); }
.paper span {
  position: absolute; inset: 0; display: grid; place-items: center; pointer-events: none;
}
.paper span[hidden] { display: none; }
.paper span, small { color: #71717a; font-size: .9rem; }
.dark & :is(.paper span, small) { color: #a1a1aa; }
.tools { display: flex; gap: 8px; margin-top: 8px; container: tools / inline-size; }
.tools div { display: flex; align-items: center; gap: 8px; margin-left: auto; }
@container tools (max-width: 22rem) { small { display: none; } }
button {
  height: 44px; min-width: 44px; padding: 0 12px; border-radius: 10px; cursor: pointer;
  color: var(--button-secondary-text-color); background: var(--button-secondary-background-fill);
}
button:hover { background: var(--button-secondary-background-fill-hover); }
button:disabled { opacity: .45; cursor: default; }
button[name=example] { padding: 6px; }
svg { width: 32px; height: 32px; fill: none; stroke: currentColor; stroke-width: 7; }
svg { stroke-linecap: round; stroke-linejoin: round; }
"""

# gradio runs this when the component appears, with `element`, `props` and `trigger`.
_JAVASCRIPT = """
const find = selector => element.querySelector(selector);
const canvas = find('canvas');
const small = Object.assign(document.createElement('canvas'), {width: SIDE, height: SIDE});
let strokes = [];  // each a list of points [x, y], 0 to 1
let current = null;  // the stroke whose pointer is down
let sentAt = 0;

document.title = words.title;
canvas.setAttribute('aria-label', words.canvas);
find('span').textContent = words.here;
for (const name of ['undo', 'clear']) find(`[name=${name}]`).textContent = words[name];
find('small').textContent = words.examples;
find('[role=group]').setAttribute('aria-label', words.examples);

function paint(canvas) {
  const pen = canvas.getContext('2d');
  const side = canvas.width;
  pen.fillStyle = 'white';
  pen.fillRect(0, 0, side, side);
  pen.lineWidth = PEN * side;
  pen.lineCap = pen.lineJoin = 'round';
  for (const points of strokes) {
    pen.beginPath();
    for (const [x, y] of [points[0], ...points]) pen.lineTo(x * side, y * side);
    pen.stroke();
  }
}

function redraw() {
  paint(canvas);
  find('span').hidden = strokes.length > 0;
  for (const name of ['undo', 'clear']) find(`[name=${name}]`).disabled = !strokes.length;
}

function send() {
  paint(small);
  props.value = strokes.length ? small.toDataURL('image/png') : '';
  trigger('input');
  sentAt = performance.now();
}

function change(newStrokes) {
  strokes = newStrokes;
  redraw();
  send();
}

function extend(event) {
  const box = canvas.getBoundingClientRect();
  current.push([(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]);
  redraw();
}

canvas.addEventListener('pointerdown', event => {
  if (!event.isPrimary || event.button) return;  // a second finger, the right button
  canvas.setPointerCapture(event.pointerId);
  strokes.push(current = []);
  extend(event);
});
canvas.addEventListener('pointermove', event => {
  if (!current || !event.isPrimary) return;
  extend(event);
  if (performance.now() - sentAt > 200) send();  // the net answers while one draws
});
for (const name of ['pointerup', 'pointercancel'])
  canvas.addEventListener(name, event => {
    if (!current || !event.isPrimary) return;
    current = null;
    send();
  });
canvas.addEventListener('keydown', event => {
  const undoes = event.key === 'Backspace' || (event.ctrlKey || event.metaKey) && event.key === 'z';
  const clears = event.key === 'Delete' || event.key === 'Escape';
  if (!undoes && !clears) return;
  event.preventDefault();
  change(clears ? [] : strokes.slice(0, -1));
});
find('[name=undo]').addEventListener('click', () => change(strokes.slice(0, -1)));
find('[name=clear]').addEventListener('click', () => change([]));
for (const button of element.querySelectorAll('[name=example]')) {
  button.setAttribute('aria-label', `${words.example}: ${button.value}`);
  button.addEventListener('click', () => change(Array.from(
    button.querySelectorAll('path'),
    path => Array.from({length: 100}, (_, number) => {
      const {x, y} = path.getPointAtLength(path.getTotalLength() * number / 99);
      return [x / 100, y / 100];
    }),
  )));
}
redraw();
"""


def drawing_pad(gradio: Any) -> Any:
    """Return a `gradio.HTML` to draw on, with Undo, Clear and examples to click.

    Each change fires its `input` event. Its value is a data URL of a PNG of SIDE x SIDE pixels,
    black on white, or "" (None before the first stroke) while nothing is drawn. It speaks the
    browser's language. Must be called inside `gradio.Blocks`.
    """
    return gradio.HTML(
        html_template=_HTML,
        css_template=_CSS,
        js_on_load=f"const SIDE = {SIDE}, PEN = {PEN};\n" + with_words(_JAVASCRIPT),
        apply_default_css=False,
    )


def picture_bytes(data_url: str) -> bytes:
    """Return the PNG file in a drawing pad's value. Raises binascii.Error if it is not base64."""
    return base64.b64decode(data_url.partition(",")[2])
