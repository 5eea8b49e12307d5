"use strict";
// All replies of the page: filtered, listed, and one of them beside its siblings and its set.
// What a model wrote only ever becomes the text of an element.
(async () => {
  const PAGE = 40, MOST_COLUMNS = 12, MOST_STAGES = 12, NO_VALUE = "\u2013";
  const home = document.getElementById("viewer");
  const say = (text) => home.replaceChildren(element("p", { class: "problem" }, text));

  if (typeof DecompressionStream === "undefined") {
    say("This browser is too old to open the replies: they are in rollouts.jsonl of each stage.");
    return;
  }
  const data = await unpack(document.getElementById("replies-data").textContent);
  const replies = data.replies.map(([prompt, stage, number, value, problem, said, text], index) =>
    ({ index, prompt: data.prompts[prompt], stage, number, value, problem, said, text }));
  data.prompts.forEach((prompt, index) => { prompt.index = index; prompt.replies = []; });
  for (const reply of replies) reply.prompt.replies.push(reply);
  const sets = new Map(data.prompts.map((prompt) => [prompt.set, []]));
  for (const prompt of data.prompts) sets.get(prompt.set).push(prompt);
  const places = new Map(replies.map((reply) => [place(reply), reply]));
  for (const facet of data.facets) {
    facet.codes = Int16Array.from(
      facet.of === "prompt" ? replies.map((reply) => facet.codes[reply.prompt.index]) : facet.codes);
  }
  const promptsAt = data.stages.map(() => new Set());
  for (const reply of replies) promptsAt[reply.stage].add(reply.prompt);
  let haystack = null;

  const orders = {
    "in the order of the evaluation": null,
    "lowest reward first": (reply) => reply.value ?? -Infinity,
    "highest reward first": (reply) => -(reply.value ?? -Infinity),
  };
  if (data.stages.length > 1) {
    orders["prompts that fell most first"] = (reply) => change(reply.prompt) ?? Infinity;
    orders["prompts that rose most first"] = (reply) => -(change(reply.prompt) ?? -Infinity);
  }
  let shown = replies, listed = 0;
  const selects = data.facets.map(filter);
  const order = select("Order", Object.keys(orders));
  const text = element("input", { type: "search", "aria-label": "Text in reply, error or prompt", placeholder: "any text" });
  const count = element("p", { class: "count", role: "status" });
  const one = element("div", { class: "one" });
  const list = element("div", { class: "list" });
  const more = element("button", { type: "button" }, "Show more");
  const clear = element("button", { type: "button" }, "Clear filters");
  const [first, rest] = [selects.slice(0, data.first), selects.slice(data.first)];
  home.replaceChildren(
    one,
    element("div", { class: "filters" }, labelled("Text", text), ...first, order.parentNode),
    ...(rest.length ? [element("details", { class: "more" },
      element("summary", {}, `${rest.length} more filters`), element("div", { class: "filters" }, ...rest))] : []),
    element("div", { class: "bar" }, count, clear), list, more);
  let waiting = 0;
  home.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(update, 60); });
  more.addEventListener("click", () => extend());
  clear.addEventListener("click", () => {
    text.value = "";
    for (const facet of data.facets) facet.select.value = "";
    update();
  });
  window.addEventListener("hashchange", follow);
  update();
  follow();

  // --- what is shown --------------------------------------------------------------------------

  function update() {
    const started = performance.now();
    const chosen = data.facets.filter((facet) => facet.select.value !== "")
      .map((facet) => [facet.codes, Number(facet.select.value)]);
    const wanted = text.value.toLowerCase();
    if (wanted) haystack ??= replies.map((r) => `${r.text}\n${r.problem}\n${r.prompt.text}`.toLowerCase());
    shown = replies.filter(({ index }) =>
      chosen.every(([codes, code]) => codes[index] === code) && (!wanted || haystack[index].includes(wanted)));
    const key = orders[order.value];
    if (key) shown = shown.map((r) => [key(r), r]).sort((a, b) => (a[0] > b[0]) - (a[0] < b[0])).map(([, r]) => r);
    home.dataset.milliseconds = String(performance.now() - started);
    const known = shown.filter((reply) => reply.value !== null);
    const mean = known.reduce((sum, reply) => sum + reply.value, 0) / known.length;
    count.textContent = `${shown.length.toLocaleString("en")} of ${replies.length.toLocaleString("en")} replies` +
      (known.length ? `, mean reward ${figure(mean)}` : "");
    list.replaceChildren();
    listed = 0;
    extend();
  }

  function extend() {
    list.append(...shown.slice(listed, listed + PAGE).map(entry));
    listed = Math.min(listed + PAGE, shown.length);
    more.hidden = listed === shown.length;
  }

  function entry(reply) {
    const line = reply.text.replace(/\s+/gu, " ").slice(0, 200);
    const summary = element("summary", {},
      element("span", { class: "stage" }, data.stages[reply.stage].title), " ",
      element("b", { class: "number" }, figure(reply.value)), " ",
      element("span", {}, visible(reply.prompt.title)), " ",
      element("span", { class: reply.problem ? "problem" : "quiet" }, visible(reply.problem || line)));
    const folded = element("details", { class: "reply" }, summary);
    folded.addEventListener("toggle", () => {
      if (folded.open && folded.children.length === 1) folded.append(detail(reply));
    });
    return folded;
  }

  function follow() {
    if (!location.hash.startsWith("#reply/")) return;
    const reply = places.get(location.hash.slice(1));
    one.replaceChildren(...(reply
      ? [element("h3", {}, visible(`${data.stages[reply.stage].title}: ${reply.prompt.title}, reply ${reply.number + 1}`)), detail(reply)]
      : [element("p", { class: "problem" }, "The reply of this link is not in this report.")]));
    home.closest("details").open = true;
    one.scrollIntoView();
  }

  // --- one reply, with what it is compared with ---------------------------------------------------

  function detail(reply) {
    const set = sets.get(reply.prompt.set);
    const facts = Object.entries(reply.prompt.metadata).filter(([, value]) => value !== null && typeof value !== "object");
    return element("div", { class: "detail" },
      element("p", { class: "quiet" }, element("a", { href: `#${place(reply)}` }, "Link to this reply")),
      ...(set.length > 1 ? [ofSet(reply, set)] : [ofPrompt(reply)]),
      siblings(reply),
      ...ofKind(reply),
      element("details", {}, element("summary", {}, "Prompt"), element("pre", { dir: "auto" }, visible(reply.prompt.text))),
      element("p", { class: "quiet" }, facts.map(([key, value]) => `${name(key)} ${visible(words(value))}`).join(", ")));
  }

  function ofPrompt(reply) {
    const kept = stagesOf([reply.prompt], reply);
    return grid("The reply at each stage", kept.map((i) => data.stages[i].title), [[null, kept.map((i) => same(reply.prompt, i, reply))]]);
  }

  // The stages at which one of the prompts has replies; of very many some, at even distances.
  function stagesOf(prompts, reply) {
    return spread([...data.stages.keys()].filter((index) => prompts.some((prompt) => promptsAt[index].has(prompt))), reply.stage);
  }

  function spread(items, needed) {
    if (items.length <= MOST_STAGES) return items;
    const distance = (items.length - 1) / (MOST_STAGES - 1);
    const chosen = new Set(Array.from({ length: MOST_STAGES }, (_, i) => items[Math.round(i * distance)]));
    return items.filter((item) => chosen.has(item) || item === needed);
  }

  // What was replied to prompts of its kind at the other steps of training, variant by variant.
  function ofKind(reply) {
    const of = (prompt, key) => JSON.stringify(prompt.metadata[key]);
    const steps = [...data.stages.keys()].filter((index) => data.stages[index].key.startsWith("step-"));
    if (!steps.includes(reply.stage) || !Object.hasOwn(reply.prompt.metadata, data.kind)) return [];
    const like = (index) => index === reply.stage ? reply.prompt :
      [...promptsAt[index]].find((prompt) => of(prompt, data.kind) === of(reply.prompt, data.kind));
    const kept = spread(steps.filter(like), reply.stage);
    if (kept.length < 2) return [];
    const columns = (data.variant ? sets.get(reply.prompt.set) : [reply.prompt]).slice(0, MOST_COLUMNS);
    const cell = (column, index) => {
      const set = data.variant ? sets.get(like(index).set) : [like(index)];
      const prompt = set.find((each) => !data.variant || of(each, data.variant) === of(column, data.variant));
      return prompt && same(prompt, index, reply);
    };
    const kind = visible(words(reply.prompt.metadata[data.kind]));
    const folded = element("details", {}, element("summary", {}, `${name(data.kind)} ${kind} over ${kept.length} steps, whatever the prompt`));
    folded.addEventListener("toggle", () => {
      if (folded.open && folded.children.length === 1) folded.append(grid("Its kind over steps",
        columns.map((column) => visible(data.variant ? words(column.metadata[data.variant]) : kind)),
        kept.map((index) => [data.stages[index].title, columns.map((column) => cell(column, index))])));
    });
    return [folded];
  }

  function ofSet(reply, set) {
    const differing = Object.keys(reply.prompt.metadata).filter(
      (key) => new Set(set.map((prompt) => JSON.stringify(prompt.metadata[key]))).size > 1);
    const keys = differing.length ? differing.slice(0, 3) : null;
    const columns = set.slice(0, MOST_COLUMNS);
    if (!columns.includes(reply.prompt)) columns[columns.length - 1] = reply.prompt;
    const titles = columns.map((prompt) => visible(keys ? keys.map((key) => words(prompt.metadata[key])).join(", ") : prompt.id));
    const rows = stagesOf(set, reply).map((index) =>
      [data.stages[index].title, columns.map((prompt) => same(prompt, index, reply))]).filter(([, cells]) => cells.some(Boolean));
    const left = set.length - columns.length;
    const note = element("p", { class: "quiet" }, `Its counterfactual set${left ? `, ${left} more variants left out` : ""}`);
    return element("div", {}, note, grid("Its counterfactual set", titles, rows));
  }

  // The reply itself, or that of another prompt or stage with the same number.
  function same(prompt, stage, reply) {
    if (prompt === reply.prompt && stage === reply.stage) return reply;
    return prompt.replies.find((other) => other.stage === stage && other.number === reply.number);
  }

  function grid(label, titles, rows) {
    const named = rows.every(([title]) => title !== null);
    const head = element("tr", { role: "row" }, ...[...(named ? ["Stage"] : []), ...titles].map((title) =>
      element("th", { role: "columnheader", scope: "col" }, title)));
    const body = rows.map(([title, cells]) => {
      const fields = cells.map((cell) => new Map(cell ? flat(cell.said) : []));
      const kept = fields.filter((_, index) => cells[index]);
      const differs = (key) => new Set(kept.map((field) => field.get(key))).size > 1;
      return element("tr", { role: "row" }, ...(named ? [element("th", { role: "rowheader", scope: "row" }, title)] : []),
        ...cells.map((cell, index) => tableCell(cell, fields[index], differs, titles[index])));
    });
    return element("div", { class: named ? "sets aligned" : "sets aligned pairs" }, element("table", { role: "table", "aria-label": label },
      element("thead", { role: "rowgroup" }, head), element("tbody", { role: "rowgroup" }, ...body)));
  }

  function tableCell(reply, fields, differs, title) {
    const cell = element("td", { role: "cell", "data-label": title });
    if (!reply) {
      cell.append(element("p", { class: "problem" }, "no reply"));
      return cell;
    }
    cell.append(element("p", {}, "reward ", element("b", { class: "score" }, figure(reply.value))));
    if (reply.problem) cell.append(element("p", { class: "problem" }, visible(reply.problem)));
    cell.append(element("pre", { dir: "auto" }, visible(reply.text)), element("ul", {}, ...[...fields].map(([key, value]) =>
      element("li", differs(key) ? { class: "differs" } : {}, `${key}: `, element(differs(key) ? "b" : "span", {}, value)))));
    return cell;
  }

  function siblings(reply) {
    const links = stagesOf([reply.prompt], reply).map((index) => {
      const others = reply.prompt.replies.filter((other) => other.stage === index);
      return element("p", { class: "quiet" }, `${data.stages[index].title}, rewards of all replies to this prompt: `,
        ...others.flatMap((other, i) => [i ? ", " : "",
          other === reply ? element("b", {}, figure(other.value)) : element("a", { href: `#${place(other)}` }, figure(other.value))]));
    });
    return element("div", {}, ...links);
  }

  // --- filters ------------------------------------------------------------------------------------

  function filter(facet) {
    const sizes = new Map();
    for (const code of facet.codes) sizes.set(code, (sizes.get(code) ?? 0) + 1);
    const options = facet.values.map((value, code) => [`${visible(value)} (${sizes.get(code) ?? 0})`, String(code)]);
    facet.select = element("select", {}, element("option", { value: "" }, "all"),
      ...options.map(([title, value]) => element("option", { value }, title)));
    return labelled(facet.label, facet.select);
  }

  function select(label, titles) {
    const made = element("select", {}, ...titles.map((title) => element("option", { value: title }, title)));
    labelled(label, made);
    return made;
  }

  function labelled(label, control) {
    return element("label", {}, element("span", {}, visible(label)), control);
  }

  // --- values in words ------------------------------------------------------------------------------

  function flat(value, path = []) {
    return Object.entries(value).flatMap(([key, held]) =>
      held !== null && typeof held === "object" && !Array.isArray(held)
        ? flat(held, [...path, key])
        : [[[...path, key].map(name).join(" "), visible(words(held))]]);
  }

  function words(value) {
    if (value === null || value === undefined || value === "") return NO_VALUE;
    if (Array.isArray(value)) return value.map(words).join("; ") || "none";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value === "number") return figure(value);
    return typeof value === "object" ? JSON.stringify(value) : value;
  }

  function name(key) {
    return visible(Object.hasOwn(data.words, key) ? data.words[key] : key.replaceAll("_", " "));
  }

  function figure(value) {
    return value === null ? NO_VALUE : String(Number(value.toPrecision(3))).replace("-", "\u2212");
  }

  // Control and formatting characters, lone surrogates and unseen line ends become one that is seen.
  function visible(text) {
    return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (c) => ("\n\t\u200c\u200d".includes(c) ? c : "\ufffd"));
  }

  function change(prompt) {
    if (!("change" in prompt)) {
      const stages = prompt.replies.map((reply) => reply.stage);
      const [first, last] = [Math.min(...stages), Math.max(...stages)].map((index) => {
        const known = prompt.replies.filter((r) => r.stage === index && r.value !== null).map((r) => r.value);
        return known.length ? known.reduce((a, b) => a + b) / known.length : null;
      });
      prompt.change = first === null || last === null || new Set(stages).size < 2 ? null : last - first;
    }
    return prompt.change;
  }

  function place(reply) {
    return `reply/${data.stages[reply.stage].key}/${encodeURIComponent(well(reply.prompt.id))}/${reply.number + 1}`;
  }

  // A lone surrogate has no place in an address.
  function well(text) {
    return text.replace(/\p{Cs}/gu, "\ufffd");
  }

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64.trim()), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
})();
