// Parts of the document. Texts of the service are set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

export function put(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text; // what did not change stays selected
}

export function element(name, kind, ...content) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...content); // strings become text nodes
  return made;
}

export function shape(name, attributes, ...content) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

export function track(share) {
  const bar = element("span");
  bar.style.width = `${100 * Math.min(1, share)}%`;
  return element("span", "track", bar);
}

const filled = new Map();

/** Build a list anew, but only if its data changed: a list that is read, scrolled or marked keeps still. */
export function fill(id, data, make) {
  const text = JSON.stringify(data);
  if (filled.get(id) === text) return;
  filled.set(id, text);
  $(id).replaceChildren(...data.map(make));
}
