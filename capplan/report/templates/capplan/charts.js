// Puts a live chart in the place of each drawn one; the drawing stays where that fails or on paper.
for (const figure of document.querySelectorAll("figure.chart")) {
  const spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const live = document.createElement("div");
  // Log level 1, errors only: a layer without rows (a quantile that does not exist) is no warning.
  const options = { actions: false, renderer: "svg", tooltip: true, logLevel: 1 };
  vegaEmbed(live, spec, options)
    .then(() => {
      figure.querySelector(".drawing").replaceWith(live);
      live.classList.add("drawing", "live");
    })
    .catch((error) => {
      figure.dataset.error = String(error);
    });
}
