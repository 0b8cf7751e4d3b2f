//! Commands for a running server.

mod manage;
mod quota;
mod show;

pub(crate) use self::manage::{AdminArgs, run as administrate};
pub(crate) use self::quota::{set_quota, usage};
pub(crate) use self::show::{purgatory, relays, repositories, status};
