//! What the processor had to do.

/// Seconds of processor time this process has used: unlike the clock, it does not tell how busy the machine is.
pub(crate) fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may contain anything but ends with the last bracket; in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let spent = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    spent.sum::<f64>() / 100.0
}
