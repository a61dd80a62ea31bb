"""The sentence of an answer, its digit large, as a gradio component whose value is the sentence."""

from typing import Any

from paddle_mnist.apps.wording import with_words

# Screen readers announce what changes in a status.
_HTML = """
<div role="status"><b></b> <p></p></div>
"""

_CSS = """
div {
  display: flex; align-items: center; gap: 16px; min-height: 64px; padding: 6px 16px;
  border: 1px solid var(--border-color-primary); border-radius: 12px;
  background: var(--block-background-fill);
}
b { font-size: 3rem; line-height: 1; color: var(--primary-600); }
b:empty { display: none; }
p { margin: 0; line-height: 1.35; color: var(--body-text-color); }
.dark & b { color: var(--primary-400); }
"""

# The sentence may quote a file, so it is set as text, never as HTML.
_JAVASCRIPT = """
function show() {
  const [, digit, rest] = (props.value || '').match(/^(?:(\\d)[,，] ?)?(.*)$/s);
  element.querySelector('b').textContent = digit || '';
  element.querySelector('p').textContent = rest || words.waiting;
}
element.querySelector('div').setAttribute('aria-label', words.answer);
watch('value', show);
show();
"""


def answer_card(gradio: Any) -> Any:
    """Return a `gradio.HTML` that shows the words of an `Answer`, in the browser's language."""
    return gradio.HTML(
        html_template=_HTML,
        css_template=_CSS,
        js_on_load=with_words(_JAVASCRIPT),
        apply_default_css=False,
    )
