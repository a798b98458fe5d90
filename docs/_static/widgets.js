// Where the widget manager finds anywidget's loader: beside this script, so that a page works from a folder and offline.
(function () {
  const here = document.currentScript.src.replace(/[^/]*$/, "");
  window.requirejs.config({ paths: { anywidget: here + "vendor/anywidget" } });
})();
