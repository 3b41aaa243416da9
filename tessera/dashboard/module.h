#pragma once

// The calculators as one C function, for the WebAssembly module of the static site.
extern "C" {

// Answers a request to a calculator: "POST", "/api/plan" and a JSON body, or "GET", "/api/about"
// and
// "". Returns the status, a space and the JSON text, valid until the next call. One thread only.
const char* tessera_answer(const char* method, const char* path, const char* body);

// Called while tessera_answer() searches. Defined by the program that links the module.
void tessera_progress(double done, double total);
}
