// Times come in UTC; a reader sees those of the own place, and UTC when pointing at one.
const format = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

export function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    time.title = time.textContent;
    time.textContent = format.format(new Date(time.dateTime));
  }
}
