// Elements made in script. Texts are texts: nothing here reads HTML.

// An element with attributes, and texts or elements inside. Functions are listeners.
export function element(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

export const button = (text, title, click, more = {}) => element("button", { type: "button", title, "aria-label": title, click, ...more }, text);

// Whether a key belongs to an input method, which has text of its own under way. Safari says so by the code alone.
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

// Whether a text is in the clipboard now. Browsers offer `navigator.clipboard` over https and on this machine only.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const field = element("textarea", { class: "hidden", readonly: true }), focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isDone;
}

export const copyButton = (title, text) => button("copy", title, async ({ currentTarget }) => {
  currentTarget.textContent = (await copy(text())) ? "copied" : "not possible";
  setTimeout(() => { currentTarget.textContent = "copy"; }, 1500);
});
