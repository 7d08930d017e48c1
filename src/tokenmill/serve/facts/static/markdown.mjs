// How a text becomes elements. Nothing that a model wrote is ever read as HTML: marked turns Markdown into HTML in which
// HTML of the text is escaped, and DOMPurify leaves only harmless elements in it.

import { copyButton, element } from "./element.mjs";
import { highlight } from "./highlight.mjs";
import { marked } from "./vendor/marked.mjs";
import DOMPurify from "./vendor/purify.mjs";

const escaped = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);
marked.use({ gfm: true, breaks: true, renderer: { html: ({ text }) => escaped(text), image: ({ text, href }) => escaped(text || href) } });

const ALLOWED = {
  ALLOWED_TAGS: "p br strong em del code pre blockquote ul ol li h1 h2 h3 h4 h5 h6 hr table thead tbody tr th td a".split(" "),
  ALLOWED_ATTR: ["href", "start", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
};
const LANGUAGE = /^language-([\w+#.-]{1,20})$/; // as marked writes the word after ```
DOMPurify.addHook("uponSanitizeAttribute", (node, said) => {
  if (said.attrName === "class") said.keepAttr = node.tagName === "CODE" && LANGUAGE.test(said.attrValue);
});
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

function elements(html) {
  const made = DOMPurify.sanitize(html, ALLOWED);
  for (const code of made.querySelectorAll("pre > code")) decorate(code);
  return made;
}

function decorate(code) {
  const text = code.textContent, language = LANGUAGE.exec(code.className)?.[1] ?? "", box = element("div", { class: "code" });
  code.replaceChildren(...highlight(text, language.toLowerCase()));
  code.parentElement.replaceWith(box);
  box.append(element("div", { class: "code-bar" }, element("span", {}, language), copyButton("Copy this code", () => text.replace(/\n$/, ""))), code.parentElement);
}

// A text that may grow. Blocks that have not changed keep their elements, so that what is selected in them stays so.
export class Markdown {
  box = element("div", { class: "body" });
  #blocks = [];
  #text = null;
  #links = "{}";

  write(text) {
    if (text === this.#text) return;
    this.#text = text;
    const blocks = marked.lexer(text), links = JSON.stringify(blocks.links), old = this.#blocks;
    let same = 0;
    while (links === this.#links && same < blocks.length && old[same]?.raw === blocks[same].raw) same += 1;
    for (const { nodes } of old.slice(same)) for (const node of nodes) node.remove();
    this.#blocks = old.slice(0, same);
    this.#links = links; // a definition changes blocks before it
    for (const block of blocks.slice(same)) {
      const made = elements(marked.parser([block])), nodes = [...made.childNodes];
      this.box.append(made);
      this.#blocks.push({ raw: block.raw, nodes });
    }
  }
}
