//! The error of a parameter whose value makes no sense.

/// Why a value makes no sense. The first field is the parameter, unless the text names it.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ValueError {
    /// A number is none of those expected.
    #[error("{0} = {1}: expected {2}")]
    Number(&'static str, f64, &'static str),
    /// A count is none of those expected.
    #[error("{0} = {1}: expected {2}")]
    Count(&'static str, u64, &'static str),
    /// The value breaks a rule, often because of another parameter.
    #[error("{0}: {1}")]
    Rule(&'static str, &'static str),
    /// The benchmark has no core, or more cores than the machine has CPUs (the second number).
    #[error("cores = {0}: expected 1 to {1}, machine.cpus")]
    Cores(usize, usize),
    /// The content with its overhead exceeds the cache.
    #[error("content {0} with overhead {1} does not fit in cache = {2}")]
    Content(f64, f64, f64),
}

impl ValueError {
    /// Refuses the first of these counts that is 0.
    ///
    /// # Errors
    /// A count is 0.
    pub(crate) fn of_zero(counts: &[(&'static str, u32)]) -> Result<(), Self> {
        let zero = counts.iter().find(|&&(_, n)| n == 0);
        zero.map_or(Ok(()), |&(name, _)| Err(Self::Count(name, 0, "1 or more")))
    }
}
