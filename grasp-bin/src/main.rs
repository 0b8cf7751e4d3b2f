//! The grasp command.
fn main() {}
