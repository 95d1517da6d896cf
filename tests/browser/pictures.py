"""Makes the pictures of docs/pictures: `make pictures`."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM

ROOT = Path(__file__).parents[2]
SHOWN = {
    "runs": "/",
    "run": "/runs/llama-7b",
    "branches": "/runs/speech-encoder",
    "save": "/runs/llama-7b/saves/1700",
    "launches": "/runs/llama-7b/launches",
    "retention": "/runs/speech-encoder/retention?keep_last=2",
    "doctor": "/doctor",
}
HEIGHTS = {"run": 1500, "branches": 1500}
USUAL_HEIGHT = 640


def main() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-u", ROOT / "examples" / "serve_demo.py", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    address = next(found[1] for line in demo.stdout if (found := re.match(r"(http://\S+)/ shows", line)))
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        for name, path in SHOWN.items():
            page.set_viewport_size({"width": 1000, "height": HEIGHTS.get(name, USUAL_HEIGHT)})
            page.goto(f"{address}{path}")
            while page.get_by_text("still looking").count():  # doctor is not waited for
                page.wait_for_timeout(500)
                page.goto(f"{address}{path}")
            page.screenshot(path=folder / f"{name}.png")
            print(folder / f"{name}.png")
        browser.close()
    demo.send_signal(signal.SIGINT)  # as Ctrl-C: it ends its server
    demo.communicate()


if __name__ == "__main__":
    main()
