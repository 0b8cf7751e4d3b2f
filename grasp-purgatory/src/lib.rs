//! Holds events until their git data is here, and goes and gets that data. A pure core will decide what waits, what
//! an arrival releases and where to look next; behind the feature `driver` live the repositories on disk, the
//! sandboxed git processes and the journal that survives a crash.
