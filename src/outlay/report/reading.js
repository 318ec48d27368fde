// What helps to read a page: local times beside UTC, copies of commands and hashes, forms that say
// what is applied. Works the same in a report file; without it nothing is missing but convenience.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("has-script");

  // A time says UTC; its local time is beside it, or in its tooltip where there is little room.
  const localTimes = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at) || at.getTimezoneOffset() === 0) continue;
      const said = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" }).format(at);
      if (time.dataset.local !== said) time.dataset.local = said;
      time.title = `${time.dateTime.replace("T", " ")} is ${said} here`;
    }
  };

  // Without a secure context, as over plain HTTP on a network, there is no clipboard to write to.
  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    await copy(button.dataset.copy);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });

  // The address of a filter has only what is set, and no columns if they are the usual ones.
  document.addEventListener("formdata", (event) => {
    const form = event.target;
    if (!form.matches("form[data-apply]")) return;
    const usual = form.querySelector("[data-usual]")?.dataset.usual.split(" ").sort().join(" ");
    if (usual && event.formData.getAll("col").sort().join(" ") === usual) event.formData.delete("col");
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });

  // A page that Back shows again may have been changed since: its form says what it lists.
  addEventListener("pageshow", (event) => {
    if (event.persisted) for (const form of document.forms) form.reset();
  });

  // What is folded is printed, too.
  const folded = [];
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details:not([open])")) {
      folded.push(each);
      each.open = true;
    }
  });
  addEventListener("afterprint", () => { for (const each of folded.splice(0)) each.open = false; });

  // A link to a folded section opens it.
  const openTarget = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folds = target && target.querySelector("details.fold");
    if (folds) folds.open = true;
  };
  addEventListener("hashchange", openTarget);
  document.addEventListener("htmx:sse:after:message", localTimes);
  localTimes();
  openTarget();
})();
