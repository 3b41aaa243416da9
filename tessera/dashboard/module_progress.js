// Passes the progress of a search to the function that the worker set as Module.onProgress. Without
// optional chaining, which Emscripten 3.1 does not read.
mergeInto(LibraryManager.library, {
  tessera_progress: function (done, total) {
    if (Module["onProgress"]) Module["onProgress"](done, total);
  },
});
