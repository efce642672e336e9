// Gives the elements of a document BrowserGym's ids, and puts each where the accessibility tree
// shows it. BrowserGym's own marking also waits to learn which elements are in view, which is most
// of its cost and is not asked here.
([parent, attribute, known]) => {
  const tags = new Set(known);
  const letters = (number) => {
    const tail = number >= 26 ? letters(Math.floor(number / 26) - 1) : "";
    const letter = String.fromCharCode(97 + (number % 26));
    return tail === "" ? letter : tail + letter.toUpperCase();
  };
  window.browsergym_elem_counter ??= 0;
  window.agentgym_frame_counter ??= 0;
  const seen = new Set();
  const mark = (element, tag) => {
    if (element.value !== undefined) element.setAttribute("value", element.value);
    if (element.checked !== undefined) element.toggleAttribute("checked", element.checked === true);
    let id = element.getAttribute(attribute);
    if (id === null || seen.has(id)) {
      const framed = tag === "iframe" || tag === "frame";
      const own = framed ? letters(window.agentgym_frame_counter++) : window.browsergym_elem_counter++;
      id = `${parent}${own}`;
      element.setAttribute(attribute, id);
    }
    seen.add(id);
    for (const name of ["aria-roledescription", "aria-description"])
      element.setAttribute(name, `browsergym_id_${id} ${element.getAttribute(name) ?? ""}`);
  };
  const visit = (root) => {
    for (const element of root.querySelectorAll("*")) {
      const tag = element.tagName.toLowerCase();
      if (tags.has(tag)) mark(element, tag);
      if (element.shadowRoot !== null) visit(element.shadowRoot);
    }
  };
  visit(document);
}
