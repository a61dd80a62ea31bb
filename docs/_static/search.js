// Searches for the query of the address: in SECTIONS, KEYWORDS and REFERENCE, which
// _extensions/site_search.py writes.
"use strict";

const MOST_PAGES = 20;
const MOST_SECTIONS = 3; // of each page
const AROUND = 80; // characters of an excerpt before and after a match

/** Return the stem of an English word: a word matches if it begins with it. */
function stem(word) {
  const singular = word.replace(/(?<=ss|sh|ch|x)es$|(?<=[^s])s$/, "");
  const plain = singular.replace(/(?<=.{4})(?:ing|ed)$/, "");
  return plain === singular
    ? plain.replace(/(?<=.{5})e$/, "") // resume, resuming
    : plain.replace(/([bdgmnprt])\1$/, "$1"); // stopped, stop
}

/** Return the words of a query; the browser separates Chinese ones. */
function wordsOf(query) {
  const segmenter = new Intl.Segmenter(document.documentElement.lang, { granularity: "word" });
  const parts = [...segmenter.segment(query.toLowerCase().replaceAll("_", " "))];
  return parts.filter((part) => part.isWordLike).map((part) => stem(part.segment));
}

/** Return the pattern of words that follow one another. */
function pattern(words) {
  const parts = words.map((word) => {
    const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return /^[a-z0-9]/.test(word) ? `(?<![a-z0-9])${escaped}[a-z0-9]*` : escaped;
  });
  return new RegExp(parts.join("[\\s_-]*"), "gi");
}

/** Return from 0 to 1 how much a text is about what matches; more if it is short. */
function frequency(text, regex) {
  const times = [...text.matchAll(regex)].length;
  return times / (times + 1 + text.length / 1000);
}

/** Return the share of a title that matches. */
function share(title, regex) {
  return 1 - title.replace(regex, "").length / title.length;
}

/** Return how well a section answers, and how many of the words it has. */
function rate([page, , pageTitle, title, text], words, phrase) {
  const all = `${pageTitle} ${title} ${text}`;
  const present = words.filter((word) => all.search(word) >= 0);
  const each = present.map((word) => frequency(text, word) + share(title, word));
  const score =
    each.reduce((sum, one) => sum + one, 0) / words.length +
    // that the words stand together says more than that they are there
    2 * (frequency(text, phrase) + 2 * share(title, phrase) + share(pageTitle, phrase));
  return { present: present.length, score: REFERENCE.includes(page) ? score / 2 : score };
}

/** Return the pages that have all words of a query, or else most of them: the best first. */
function find(query) {
  const words = wordsOf(query);
  if (!words.length) return { pages: [] };
  const regexes = words.map((word) => pattern([word]));
  const phrase = pattern(words);
  const keyed = (page) => (KEYWORDS[page] ?? []).some((keyword) => share(keyword, phrase) === 1);
  const rated = SECTIONS.map((section) =>
    section[2] === section[3] && keyed(section[0])
      ? { section, present: words.length, score: 5 }
      : { section, ...rate(section, regexes, phrase) },
  );
  const most = Math.max(1, ...rated.map(({ present }) => present));
  const pages = new Map();
  rated
    .filter(({ present }) => present === most)
    .sort((one, other) => other.score - one.score)
    .forEach(({ section }) => pages.set(section[0], [...(pages.get(section[0]) ?? []), section]));
  const marked = [phrase, ...regexes.filter((_, i) => words[i].length > 1)];
  return { pages: [...pages.values()], marked };
}

/** Return an element with children: elements and strings. */
function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Return the part of a text around the first match, with that marked. */
function excerpt(text, marked) {
  const regex = marked.find((each) => text.search(each) >= 0);
  if (!regex) return element("p", {}, `${text.slice(0, 2 * AROUND)} …`);
  const [found] = text.match(regex);
  const at = text.search(regex);
  const start = Math.max(0, at - AROUND);
  const end = at + found.length + AROUND;
  return element(
    "p",
    {},
    (start ? "… " : "") + text.slice(start, at),
    element("mark", {}, found),
    text.slice(at + found.length, end) + (end < text.length ? " …" : ""),
  );
}

function shown(sections, marked) {
  const [page, , pageTitle] = sections[0];
  const isBeginning = ([, , , title]) => title === pageTitle;
  const best = sections.slice(0, MOST_SECTIONS);
  best.sort((one, other) => isBeginning(other) - isBeginning(one));
  const hits = best.map(([, anchor, , title, text]) => {
    const link = element("a", { href: `${page}.html#${anchor}` }, title);
    return element("li", {}, ...(title === pageTitle ? [] : [link]), excerpt(text, marked));
  });
  const link = element("a", { href: `${page}.html` }, pageTitle);
  return element("li", { className: "hit" }, element("h2", {}, link), element("ul", {}, ...hits));
}

const query = new URLSearchParams(location.search).get("q") ?? "";
const results = document.getElementById("search-results");
document.querySelectorAll("form.bd-search input").forEach((input) => (input.value = query));
if (query) {
  const { pages, marked } = find(query);
  const list = pages.slice(0, MOST_PAGES).map((sections) => shown(sections, marked));
  results.append(list.length ? element("ol", {}, ...list) : LABELS.nothing_found);
}
