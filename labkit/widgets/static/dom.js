// Small helpers for building a widget's page: every text goes in as text, never as markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);

// Counted on the page, because each widget is a module of its own.
export function freshId(stem) {
  globalThis.labkitSerial = (globalThis.labkitSerial ?? 0) + 1;
  return `labkit-${stem}-${globalThis.labkitSerial}`;
}

// Touch the page only where something changed: a drag over 64 bits must fit into a frame.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

// The root of a widget: theme class, a name for screen readers, and Jupyter's own key bindings held off.
export function makeRoot(el, model, className, label) {
  const root = h("div", { class: `labkit ${className}`, role: "group", "aria-label": label, "data-lm-suppress-shortcuts": "true" });
  el.append(root);
  return root;
}

export function labelled(label, control, attributes = {}) {
  control.id ||= freshId("control");
  return h("div", { class: "lk-field", ...attributes }, h("label", { class: "lk-label", for: control.id, text: label }), control);
}

export function select(options, attributes = {}) {
  return h("select", attributes, ...options.map(([value, text]) => h("option", { value, text })));
}

// A button; `label` is its name for screen readers and its tooltip where the text alone is too short.
export function button(text, action, { label = null, ...attributes } = {}) {
  const node = h("button", { type: "button", "aria-label": label, title: label, text, ...attributes });
  node.addEventListener("click", action);
  return node;
}

// A drop-down that follows a trait. `take` gets the chosen value.
export function choice({ label, options, read, take }) {
  const control = select(options);
  control.addEventListener("change", () => take(control.value));
  control.addEventListener("keydown", (event) => event.stopPropagation());
  return { field: labelled(label, control), control, refresh: () => (control.value = read()) };
}

export function disclosure(summary, ...children) {
  return h("details", {}, h("summary", { text: summary }), h("div", { class: "lk-fold" }, ...children));
}

// A polite live region that speaks once the changes pause, so that a drag is not read out bit by bit.
export function makeSpeaker(root, signal) {
  const region = h("div", { class: "lk-hidden", "aria-live": "polite", role: "status" });
  root.append(region);
  let timer = 0;
  signal?.addEventListener("abort", () => clearTimeout(timer));
  return (text) => {
    clearTimeout(timer);
    timer = setTimeout(() => setText(region, text), 250);
  };
}

// A text field that takes its text on Enter or on leaving; a refused text stays, with one sentence below it.
export function textField({ label, read, take, root, mono = true, placeholder = null }) {
  const input = h("input", { type: "text", autocomplete: "off", spellcheck: "false", autocapitalize: "off", placeholder, class: mono ? "lk-mono" : null });
  const message = h("p", { class: "lk-error", role: "alert", id: freshId("message") });
  const field = labelled(label, input);
  field.append(message);
  let shown = null;
  const fail = (text) => {
    setText(message, text);
    setAttribute(input, "aria-invalid", text ? "true" : null);
    setAttribute(input, "aria-describedby", text ? message.id : null);
  };
  const refresh = () => {
    const text = read();
    if (text === shown) return;
    shown = text;
    input.value = text;
    fail("");
  };
  const submit = () => {
    if (input.value === shown) return fail("");
    try {
      take(input.value);
      fail("");
      shown = null;
      refresh();
    } catch (error) {
      fail(error.message);
    }
  };
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") submit();
    if (event.key === "Escape") {
      shown = null;
      refresh();
    }
  });
  input.addEventListener("change", submit);
  return { field, input, refresh, fail };
}

// One end for all that a view has to undo: the front end's signal, or the clean-up function that render returns to older ones.
export function lifetime(signal) {
  const controller = new AbortController();
  signal?.addEventListener("abort", () => controller.abort());
  return { signal: controller.signal, end: () => controller.abort() };
}

// Follow traits of the model until the view goes away.
export function follow(model, names, handler, signal) {
  for (const name of names) model.on(`change:${name}`, handler);
  signal?.addEventListener("abort", () => {
    for (const name of names) model.off(`change:${name}`, handler);
  });
}
