"""The page in a real browser: it renews itself, is used by keys, and can be read by everybody."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pulsar_ray.client.client import Client
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Http

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
IMAGES = os.environ.get("PAGE_IMAGES")
"""A directory for pictures of the pages, for the documentation."""
SCRIPT = "<img src=x onerror=alert(1)>"
DESKTOP, TELEPHONE = (1280, 900), (390, 800)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the PATH"),
]

_UNLABELLED = """
return [...document.querySelectorAll("input:not([type=hidden]), select, button, a[href]")].filter((each) => {
  const text = (each.labels && each.labels.length ? each.labels[0].textContent : "") + each.textContent
    + (each.getAttribute("aria-label") || "");
  return !text.trim();
}).map((each) => each.outerHTML);
"""
_NAMES = "return [...document.querySelectorAll('#topics tbody th')].map((each) => each.innerText.trim())"
_PLOTTED = """
const topic = document.querySelector("[data-figures]").dataset.topic;
return JSON.parse(sessionStorage.getItem("plots of " + topic) || "[[]]")[0];
"""
_POOR_CONTRAST = """
const parsed = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const colour = parsed(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("main *, header *, footer *")]
  .filter((each) => [...each.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
  .filter((each) => each.checkVisibility())
  .map((each) => {
    const [a, b] = [light(parsed(getComputedStyle(each).color)), light(ground(each))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.outerHTML.slice(0, 120)];
  })
  .filter(([ratio]) => ratio < 4.5);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_window_size(*DESKTOP)
    yield driver
    driver.quit()


@pytest.fixture
def topic(client: Client, name: str) -> Iterator[str]:
    consumer = client.subscribe(
        name, "billing", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    )
    producer = client.create_producer(name)
    for number in range(20):
        producer.send(b'{"order": %d}' % number, partition_key=f"k{number % 3}", properties={SCRIPT: SCRIPT})
    yield name
    producer.close()
    consumer.close()


def text(browser: webdriver.Chrome) -> str:
    """Return what the page says; nothing while another page takes the place of this one."""
    try:
        return str(browser.find_element(By.TAG_NAME, "main").text)
    except StaleElementReferenceException:
        return ""


def rows(browser: webdriver.Chrome) -> list[str]:
    """The names in the table of topics, which may be replaced at any moment."""
    names: list[str] = browser.execute_script(_NAMES)
    return names


def live(browser: webdriver.Chrome) -> str:
    """The figures of a topic, which may be replaced at any moment."""
    return str(browser.execute_script("return document.getElementById('live').innerText"))


def is_clean(browser: webdriver.Chrome) -> None:
    """Nothing was refused by the policy of content, and no script failed."""
    entries: list[dict[str, Any]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert [each["message"] for each in entries if each["level"] == "SEVERE"] == []


def picture(browser: webdriver.Chrome, name: str) -> None:
    if IMAGES:
        browser.save_screenshot(str(Path(IMAGES) / f"page-{name}.png"))


def page_of(call: Http, topic: str, rest: str = "") -> str:
    return f"{call.url}/ui/topics/persistent/public/default/{topic}{rest}"


def test_a_search_by_keys_shows_what_fits_without_loading_the_page_again(
    browser: webdriver.Chrome, call: Http, client: Client, topic: str
) -> None:
    client.create_producer(f"{topic}-other").send(b"x")
    browser.get(call.url)
    browser.execute_script("window.isTheSame = true")
    browser.find_element(By.TAG_NAME, "body").send_keys("/")
    search = browser.switch_to.active_element
    assert search.get_attribute("id") == "q"
    search.send_keys(f"{topic}-other")
    wait_until(lambda: rows(browser) == [f"{topic}-other"])
    assert browser.execute_script("return window.isTheSame")
    # What is asked for again every two seconds has the same search.
    before = browser.find_element(By.ID, "topics")
    wait_until(lambda: browser.find_element(By.ID, "topics") != before)
    assert rows(browser) == [f"{topic}-other"]
    is_clean(browser)


def test_a_topic_renews_itself_and_is_plotted(
    browser: webdriver.Chrome, call: Http, client: Client, topic: str
) -> None:
    browser.get(page_of(call, topic))
    assert "billing" in text(browser)
    wait_until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "[data-plot] canvas")) == 2)
    remembered = page_of(call, topic, "/history").removeprefix(call.url)
    wait_until(lambda: 20 in call.ok("GET", remembered)["backlog"], what="a look at all topics")
    browser.execute_script("sessionStorage.clear()")
    browser.get(page_of(call, topic))
    wait_until(lambda: len(browser.execute_script(_PLOTTED)) > 1, what="points from before this tab")
    wait_until(lambda: "Backlog\n20" in live(browser))
    with client.create_producer(topic) as producer:
        for _ in range(5):
            producer.send(b"more")
    wait_until(lambda: "Backlog\n25" in live(browser))
    browser.find_element(By.XPATH, "//button[contains(., 'not delivered')]").click()
    wait_until(lambda: browser.find_element(By.ID, "why").text)
    picture(browser, "topic")
    is_clean(browser)


def test_messages_are_text_whatever_they_say(browser: webdriver.Chrome, call: Http, topic: str) -> None:
    browser.get(page_of(call, topic, "/messages?count=3"))
    assert '{"order": 19}' in text(browser)
    browser.find_element(By.CSS_SELECTOR, "article summary").click()
    assert SCRIPT in text(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "main img") == []
    picture(browser, "messages")
    is_clean(browser)


def test_a_deletion_is_two_steps_by_keys(browser: webdriver.Chrome, call: Http, topic: str) -> None:
    browser.get(page_of(call, topic))
    browser.find_element(By.LINK_TEXT, "Delete the topic").send_keys(Keys.ENTER)
    wait_until(lambda: "are lost, for ever" in text(browser))
    picture(browser, "delete")
    browser.find_element(By.NAME, "force").send_keys(Keys.SPACE)
    browser.find_element(By.CSS_SELECTOR, "button.danger").send_keys(Keys.ENTER)
    wait_until(lambda: "is deleted" in text(browser))
    browser.get(page_of(call, topic))
    assert "does not exist" in text(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, TELEPHONE])
def test_everything_has_a_name_and_can_be_read(
    browser: webdriver.Chrome, call: Http, topic: str, scheme: str, size: tuple[int, int]
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.set_window_size(*size)
    for path in (
        call.url,
        page_of(call, topic),
        page_of(call, topic, "/messages"),
        page_of(call, topic, "/actions/delete"),
        f"{call.url}/ui/nodes",
        f"{call.url}/ui/letters",
        f"{call.url}/ui/login",
        f"{call.url}/ui/nothing",
    ):
        browser.get(path)
        assert browser.execute_script(_UNLABELLED) == [], path
        assert browser.execute_script(_POOR_CONTRAST) == [], path
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= browser.execute_script("return window.innerWidth"), path
        if size == DESKTOP and path.endswith(("/nodes", call.url)):
            picture(browser, f"{'topics' if path == call.url else 'nodes'}-{scheme}")
    browser.set_window_size(*DESKTOP)
