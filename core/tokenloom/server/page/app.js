// Puts the page together: the chat, the live engine, and what they share.

import { hasKey, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { LiveEngine } from "./live.js";

const $ = (id) => document.getElementById(id);

/** Asks for an API key; resolves to whether one was given. `isRefused`: the server said no to what it got. */
function askForKey(isRefused) {
  const dialog = $("key-dialog");
  $("key-button").hidden = false;
  if (!dialog.open) {
    $("key").value = "";
    $("key-refused").hidden = !(isRefused && hasKey());
    dialog.returnValue = "";
    dialog.showModal();
  }
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "given"), { once: true });
  });
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  // A header holds nothing else; the server would not know such a key either.
  const isLegal = /^[\x21-\x7e]+$/.test(key);
  $("key").setCustomValidity(isLegal ? "" : "A key has letters, digits and signs of ASCII only.");
  if (!$("key").reportValidity()) return;
  setKey(key);
  $("key-dialog").close("given");
});
$("key").addEventListener("input", () => $("key").setCustomValidity(""));
$("key-cancel").addEventListener("click", () => $("key-dialog").close());
$("key-button").addEventListener("click", () => askForKey(false));

for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.show;
    for (const other of document.querySelectorAll("[data-show]")) other.setAttribute("aria-pressed", String(other === button));
  });
}

new Chat(() => askForKey(true));
const live = new LiveEngine(() => ($("key-button").hidden = false));
$("key-dialog").addEventListener("close", () => live.resume());
live.resume();
