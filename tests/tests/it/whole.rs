//! Several servers that list each other: whatever is done at one of them, all end with the same events and refs.

mod away;
mod emptied;
mod healed;
mod killed;
mod late;
mod life;
mod maintainers;
mod member;
mod net;
mod orders;
mod threads;
