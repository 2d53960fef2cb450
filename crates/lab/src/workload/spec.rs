//! Workloads as scenario files describe them, and the spaces and threads that workloads make.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Program, apps, batch, build, fio, kv, launch, mix, simoop, sysbench, tpcc, trace, web, ycsb,
};
use crate::machine::Region;
use crate::machine::allocation::Allocation;

/// One workload of a scenario: a name, a memcg and the parameters of one generator.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkloadSpec {
    /// Name of the workload.
    pub name: String,
    /// Memcg of the workload; none: the first memcg.
    pub memcg: Option<String>,
    /// Whether the workload runs beside the others without being measured.
    #[serde(default)]
    pub background: bool,
    /// A key-value store under a memtier-like load.
    pub key_value: Option<kv::KeyValue>,
    /// A database under YCSB.
    pub ycsb: Option<ycsb::Ycsb>,
    /// A database under TPC-C.
    pub tpcc: Option<tpcc::Tpcc>,
    /// A database under sysbench.
    pub sysbench: Option<sysbench::Sysbench>,
    /// Files read and written in blocks, as by fio.
    pub fio: Option<fio::Fio>,
    /// A kernel build: many short programs.
    pub build: Option<build::Build>,
    /// Batch jobs that sort.
    pub batch: Option<batch::Batch>,
    /// Applications of one user, who switches between them.
    pub apps: Option<apps::Apps>,
    /// Readers, writers and allocators, as in simoop.
    pub simoop: Option<simoop::Simoop>,
    /// A mapped file that processes keep hot, and anonymous memory that a process fills and frees.
    pub mix: Option<mix::Mix>,
    /// Applications that are started from nothing, while services run.
    pub launch: Option<launch::Launch>,
    /// Browsers, and the servers from which they load pages.
    pub web: Option<web::Web>,
    /// A trace of the user's own, played back.
    pub trace: Option<trace::Trace>,
    /// The page allocator alone; it runs without the rest of the machine.
    pub allocation: Option<Allocation>,
}

/// An address space of a plan.
#[derive(Clone, Debug)]
pub struct SpaceSpec {
    /// Memcg to which the pages belong.
    pub memcg: usize,
    /// Regions, from page 0 on.
    pub regions: Vec<Region>,
}

/// A thread of a plan.
pub struct ThreadSpec {
    /// Program of the thread.
    pub program: Box<dyn Program>,
    /// Address space of the thread.
    pub home: usize,
    /// Whether the thread's operations count.
    pub measured: bool,
}

/// A log to which transactions are committed.
#[derive(Clone, Copy, Debug)]
pub struct LogSpec {
    /// Space of the log's file. The writer goes through its pages in turn, again and again.
    pub space: u16,
    /// Pages of the file.
    pub size: u32,
    /// Pages of a transaction's records.
    pub pages: u32,
    /// Nanoseconds that the writer computes for each transaction.
    pub ns: u32,
}

/// Everything that a scenario puts on the machine.
#[derive(Default)]
pub struct Plan {
    /// Spaces in order.
    pub spaces: Vec<SpaceSpec>,
    /// Threads in order.
    pub threads: Vec<ThreadSpec>,
    /// Number of groups of barriers handed out.
    pub groups: u16,
    /// Logs in order.
    pub logs: Vec<LogSpec>,
}

/// Environment of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Memcg of the workload.
    pub memcg: usize,
    /// Pages that ratios refer to: the memcg's limit, or the machine's memory.
    pub memory: u64,
    /// Seed of the workload's random numbers.
    pub seed: u64,
    /// Whether the workload is measured.
    pub measured: bool,
}

impl Setting {
    /// Returns `ratio` of memory in pages.
    #[must_use]
    pub fn pages(&self, ratio: f64) -> u64 {
        (self.memory as f64 * ratio).round().max(1.0) as u64
    }

    /// Returns the seed of thread `thread` of workload part `part`.
    #[must_use]
    pub fn seed_of(&self, part: u64, thread: u64) -> u64 {
        let mix = ebb_mm::random::Random(self.seed ^ (part << 32) ^ (thread << 8)).word();
        mix ^ self.seed.rotate_left(17)
    }
}

impl Plan {
    /// Adds a space. Returns its number.
    pub fn space(&mut self, memcg: usize, regions: Vec<Region>) -> u16 {
        self.spaces.push(SpaceSpec { memcg, regions });
        (self.spaces.len() - 1) as u16
    }

    /// Adds a thread.
    pub fn thread(&mut self, program: Box<dyn Program>, home: u16, measured: bool) {
        self.threads.push(ThreadSpec { program, home: usize::from(home), measured });
    }

    /// Adds a log. Returns its number.
    pub fn log(&mut self, spec: LogSpec) -> u16 {
        self.logs.push(spec);
        (self.logs.len() - 1) as u16
    }

    /// Adds a group of barriers. Returns its number.
    pub fn group(&mut self) -> u16 {
        self.groups += 1;
        self.groups - 1
    }
}

/// A workload (its name) has no generator, or several (their number).
#[derive(Debug, thiserror::Error)]
#[error("workload {0:?}: expected one generator, of {kinds}; it has {1}",
    kinds = WorkloadSpec::KINDS.join(", "))]
pub struct GeneratorCount(String, u32);

macro_rules! generators {
    ($($name:literal $field:ident),*) => {
        impl WorkloadSpec {
            /// The names of the generators.
            pub const KINDS: &'static [&'static str] = &[$($name),*];

            /// Adds the workload to the plan.
            ///
            /// # Errors
            /// There is no generator, or there are several.
            pub fn plan(&self, plan: &mut Plan, place: &Setting) -> Result<(), GeneratorCount> {
                let mut made = 0;
                $(if let Some(spec) = &self.$field {
                    spec.plan(plan, place);
                    made += 1;
                })*
                if made == 1 { Ok(()) } else { Err(GeneratorCount(self.name.clone(), made)) }
            }
        }
    };
}

generators!["key-value" key_value, "ycsb" ycsb, "tpcc" tpcc, "sysbench" sysbench, "fio" fio, "build" build, "batch" batch,
    "apps" apps, "simoop" simoop, "mix" mix, "web" web, "launch" launch, "trace" trace];
