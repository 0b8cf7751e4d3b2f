//! Git over HTTP: the smart protocol for every repository that is held or served here.

mod body;
