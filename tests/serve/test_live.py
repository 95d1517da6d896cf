"""How a page follows its runs: `live.js` in Node.js, with the few things of a browser that it uses."""

import shutil
import subprocess
from pathlib import Path

import pytest

import ckptstore.serve

SCRIPT = Path(ckptstore.serve.__file__).parent / "static" / "live.js"
NODE = shutil.which("node")
BROWSER = """
const heard = {}, answers = [], shown = [], streams = [];
let focus = null, clicked = null;
const soon = setTimeout;
globalThis.setTimeout = act => soon(act);
globalThis.setInterval = act => { heard.minute = act; };
const later = () => new Promise(done => soon(done));
const told = async (text, ok = true) => { await later(); answers.shift()(text, ok); await later(); };
globalThis.EventSource = class {
  static CLOSED = 2;
  constructor() { streams.push(this); }
  addEventListener(name, act) { heard[name] = act; }
};
globalThis.DOMParser = class { parseFromString(text) { return { querySelector: () => text }; } };
globalThis.navigator ??= {};
globalThis.location = { href: "/runs/digits" };
const isPage = asked => asked?.headers?.accept === "text/html";  // else who must sign in gets no form
globalThis.fetch = (_, asked) => new Promise(
  done => answers.push((text, ok) => done({ ok: ok && isPage(asked), text: async () => text }))
);
let parts = [];
const main = {
  dataset: {},
  replaceWith(content) { shown.push(content); parts = parts.map(() => ({ open: false, scrollLeft: 0 })); },
};
globalThis.document = {
  addEventListener(name, act) { heard[name] = act; },
  querySelector: wanted => wanted === "main" ? main : focus ?? (wanted.includes("focus-visible") ? null : clicked),
  querySelectorAll: () => parts,
};
"""
STORIES = {
    "the server was away": (
        "heard.open(); heard.error(); shown.push(Object.keys(main.dataset)); heard.open(); await told('new');",
        "old,new",
    ),
    "a proxy answered for it with an error": (
        "streams[0].readyState = 2; heard.error(); await told('sign in'); shown.push(streams.length);",
        "sign in,2",
    ),
    "the catalog is away": ("heard.unavailable(); shown.push(Object.keys(main.dataset));", "old"),
    "a disk of the run hangs": (
        "heard.minute(); await told('503', false); shown.push(Object.keys(main.dataset));",
        "old",
    ),
    "a proxy answers with a page of its own": (
        "heard.minute(); await told(null); shown.push(Object.keys(main.dataset));",
        "old",
    ),
    "the machine of the server is gone": (
        """
        globalThis.fetch = () => Promise.reject();
        process.on("unhandledRejection", () => shown.push(Object.keys(main.dataset)));
        heard.minute();
        await later();
        """,
        "old",
    ),
    "nothing happens for a minute": ("heard.minute(); await told('saved 1 min ago');", "saved 1 min ago"),
    "a change during a fetch": ("heard.changed(); heard.changed(); await told('old'); await told('new');", "old,new"),
    "a table was scrolled, and a part opened": (
        "parts = [{ open: 1, scrollLeft: 4 }]; heard.minute(); await told(); shown.push(...Object.values(parts[0]));",
        ",1,4",
    ),
    "a table was clicked": ("clicked = 'table'; heard.changed(); await told('new');", "new"),
    "a field is filled in": (
        "focus = 'field'; heard.changed(); await later(); focus = null; heard.focusout(); await told('new');",
        "new",
    ),
    "somebody begins to type during a fetch": (
        "heard.changed(); focus = 'field'; await told('old'); focus = null; heard.focusout(); await told('new');",
        "new",
    ),
}


@pytest.mark.skipif(NODE is None, reason="needs Node.js")
@pytest.mark.parametrize("story", STORIES)
def test_no_change_is_missed(story: str) -> None:
    assert NODE is not None
    happens, expected = STORIES[story]
    program = f"{BROWSER}{SCRIPT.read_text()}(async () => {{ {happens} console.log(shown.join()); }})();"
    ran = subprocess.run([NODE, "--eval", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{expected}\n", "")
