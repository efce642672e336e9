// Takes back what mark.js put where the accessibility tree shows it; the ids stay.
() => {
  const visit = (root) => {
    for (const element of root.querySelectorAll("*")) {
      for (const name of ["aria-roledescription", "aria-description"]) {
        const text = element.getAttribute(name);
        if (text === null || !text.startsWith("browsergym_id_")) continue;
        const own = text.slice(text.indexOf(" ") + 1);
        if (own === "") element.removeAttribute(name);
        else element.setAttribute(name, own);
      }
      if (element.shadowRoot !== null) visit(element.shadowRoot);
    }
  };
  visit(document);
}
