//! Properties of the rules, over inputs nobody would think of.
#![allow(clippy::unwrap_used)]

mod events;
mod prop_maintainers;
mod prop_parsers;
mod prop_push;
