// Buttons that copy code, and a language switch that keeps the anchor.
"use strict";

for (const block of document.querySelectorAll("div.highlight > pre")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = LABELS.copy;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.textContent.trimEnd() + "\n");
    button.textContent = LABELS.copied;
    setTimeout(() => (button.textContent = LABELS.copy), 2000);
  });
  block.parentElement.append(button);
}

for (const link of document.querySelectorAll("a.language-switch")) {
  link.addEventListener("click", () => (link.hash = location.hash));
}
