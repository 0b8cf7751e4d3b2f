//! Processor time.

/// Returns the seconds of processor time of this process, which do not depend on the load of the machine.
pub(crate) fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may contain anything but ends with the last bracket; in hundredths of a second.
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let spent = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    spent.sum::<f64>() / 100.0
}
