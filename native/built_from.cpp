// The digest of the sources and the name of the compiler, as a text in the library's file. hatch_build.py looks for it to see
// whether a library is up to date, and `tokenmill --version` prints it. Nothing calls it.
#ifndef TM_BUILT_FROM
#define TM_BUILT_FROM "0 by hand"
#endif

namespace {
__attribute__((used)) const char built_from[] = "tokenmill's library was built from " TM_BUILT_FROM;
}
