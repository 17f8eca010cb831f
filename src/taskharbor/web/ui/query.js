/** Words of a search, as texts: the grammar itself is in the server, which says where it does not understand. */

/** [{ text, at }]: parts between spaces; quotes keep spaces inside. */
export function words(q) {
  return [...q.matchAll(/(?:[^\s"]|"(?:[^"\\]|\\.)*"?)+/g)].map((match) => ({ text: match[0], at: match.index }));
}

export const textsOf = (q) => words(q).map((word) => word.text);
export const join = (texts) => texts.filter(Boolean).join(" ");
export const fieldOf = (text) => /^-?([a-z]+)[:.]/.exec(text)?.[1] ?? "";

/** The query with other words for one field, or without. */
export function withField(q, field, text) {
  return join([...textsOf(q).filter((word) => fieldOf(word) !== field || word.startsWith("-")), text]);
}

/** The value of the only positive word of a field, or "". */
export function fieldValue(q, field) {
  const found = textsOf(q).filter((word) => word.startsWith(`${field}:`));
  return found.length === 1 ? found[0].slice(field.length + 1) : "";
}

/** Whether only queues and states are asked for: then the board knows the counts. */
export const isPlain = (q) => textsOf(q).every((text) => /^(queue|state):[\w.,-]+$/.test(text));

/** Queues that the query names exactly; null means any. */
export function queuesOf(q) {
  const text = fieldValue(q, "queue");
  return text && !text.includes("*") ? new Set(text.split(",")) : null;
}

/** Whether a draft is one whole word: no open quote, not only a field. */
export const isWhole = (draft) => draft !== "" && (draft.split('"').length - 1) % 2 === 0 && !/[:.]$/.test(draft);

const quoted = (value) => (/[\s"]/.test(value) ? JSON.stringify(value) : value);

/** What could come next: [text, hint]. Only names that are known; no jobs are read.
 *
 * @param {any} known the body of GET /api/search: fields, states, queues, types, workers */
export function completions(draft, known) {
  const [, not, body] = /^(-?)(.*)$/s.exec(draft);
  const field = /^([a-z]+):/.exec(body)?.[1];
  if (!field) {
    const fields = Object.entries(known.fields).filter(([name]) => name.startsWith(body) && name !== body);
    const types = body.length > 1 ? known.types.filter((name) => name.startsWith(body)).map((name) => [`type:${name}`, "task"]) : [];
    return [...fields, ...types].slice(0, 8).map(([name, hint]) => [not + name, hint]);
  }
  const parts = body.slice(field.length + 1).split(","), last = parts.pop();
  return (known[`${field}s`] ?? []).filter((name) => name.includes(last) && name !== last && !parts.includes(name))
    .sort((a, b) => b.startsWith(last) - a.startsWith(last)).slice(0, 8).map((name) => [`${not}${field}:${[...parts, quoted(name)]}`, ""]);
}
