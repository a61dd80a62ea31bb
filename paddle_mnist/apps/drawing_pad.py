"""A canvas to draw on in the browser, as a gradio component whose value is the drawing.

gradio's own `Sketchpad` is an image editor: clearing it puts the brush away, and it needs WebGL.
"""

import base64
from typing import Any

SIDE = 280  # pixels of the drawing, which the page may show larger or smaller
PEN = 14  # pixels, a twentieth of the side, as MNIST's strokes are about as wide

_HTML = f"""
<canvas width="{SIDE}" height="{SIDE}" role="img" aria-label="Draw here"></canvas>
<div>
  <button type="button" name="undo">Undo 撤销</button>
  <button type="button" name="clear">Clear 清除</button>
</div>
"""

# A finger that draws must not scroll the page: touch-action.
_CSS = """
canvas {
  display: block; width: 100%; max-width: 360px; margin: auto; touch-action: none;
  cursor: crosshair; background: white; border: 1px solid var(--border-color-primary);
}
div { display: flex; justify-content: center; gap: 8px; margin-top: 8px; }
button {
  padding: 8px 16px; border-radius: var(--radius-md); cursor: pointer;
  color: var(--button-secondary-text-color); background: var(--button-secondary-background-fill);
}
"""

# gradio runs this when the component appears, with `element`, `props` and `trigger`.
_JAVASCRIPT = f"""
const canvas = element.querySelector('canvas');
const pen = canvas.getContext('2d');
let strokes = [];  // each a list of points [x, y]
let current = null;  // the stroke whose pointer is down
let sentAt = 0;

function redraw() {{
  pen.fillStyle = 'white';
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.lineWidth = {PEN};
  pen.lineCap = pen.lineJoin = 'round';
  for (const points of strokes) {{
    pen.beginPath();
    pen.moveTo(...points[0]);
    for (const point of points) pen.lineTo(...point);
    pen.stroke();
  }}
}}

function send() {{
  props.value = strokes.length ? canvas.toDataURL('image/png') : '';
  trigger('input');
  sentAt = performance.now();
}}

function extend(event) {{
  const box = canvas.getBoundingClientRect();
  current.push([
    (event.clientX - box.left) * canvas.width / box.width,
    (event.clientY - box.top) * canvas.height / box.height,
  ]);
  redraw();
}}

canvas.addEventListener('pointerdown', event => {{
  if (!event.isPrimary || event.button) return;  // a second finger, the right button
  event.preventDefault();  // selects no text
  canvas.setPointerCapture(event.pointerId);
  strokes.push(current = []);
  extend(event);
}});
canvas.addEventListener('pointermove', event => {{
  if (!current || !event.isPrimary) return;
  extend(event);
  if (performance.now() - sentAt > 200) send();  // the net answers while one draws
}});
for (const name of ['pointerup', 'pointercancel'])
  canvas.addEventListener(name, event => {{
    if (!current || !event.isPrimary) return;
    current = null;
    send();
  }});
element.querySelector('[name=undo]').addEventListener('click', () => {{
  strokes.pop();
  redraw();
  send();
}});
element.querySelector('[name=clear]').addEventListener('click', () => {{
  strokes = [];
  redraw();
  send();
}});
redraw();
"""


def drawing_pad(gradio: Any) -> Any:
    """Return a `gradio.HTML` to draw on, with Undo and Clear; each change fires its `input` event.

    Its value is a data URL of a PNG of SIDE x SIDE pixels, black on white, or "" (None before the
    first stroke) while nothing is drawn. Must be called inside `gradio.Blocks`.
    """
    return gradio.HTML(
        html_template=_HTML, css_template=_CSS, js_on_load=_JAVASCRIPT, apply_default_css=False
    )


def picture_bytes(data_url: str) -> bytes:
    """Return the PNG file in a drawing pad's value. Raises binascii.Error if it is not base64."""
    return base64.b64decode(data_url.partition(",")[2])
