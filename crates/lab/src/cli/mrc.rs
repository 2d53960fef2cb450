//! `ebb lab mrc`: miss-ratio curves as a table, CSV, JSON, or a page with a plot.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, value_parser};
use ebb_plot::{Chart, Series, escape, page, percent};
use serde_json::json;

use super::{Progress, TraceArgs, parse_memory, parse_policies, print};
use crate::mrc::{Curve, Measured, Plan, measure, spread};
use crate::policy::Settings;
use crate::report::{OutputFormat, SCHEMA, TraceInfo, field, size_of_pages, thousands};
use crate::trace::synth::{self, Synth};
use crate::trace::{Lack, Reader, Sampler, Samples, load_samples};

/// Arguments of `ebb lab mrc`.
#[derive(Debug, Args)]
pub struct MrcArgs {
    /// Trace to replay
    #[command(flatten)]
    trace: TraceArgs,
    /// Policies to run, with commas; all: every policy
    #[arg(long, short, value_name = "LIST", default_value = "lru,clock,arc,s3-fifo,belady")]
    policy: String,
    /// Number of sizes, from 1 % to 100 % of the trace's pages
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(2..))]
    sizes: u32,
    /// Use these sizes instead, in pages or percent, with commas
    #[arg(long, short, value_name = "LIST")]
    memory: Option<String>,
    /// Set a policy's parameter, such as clock.bits=2; `ebb lab policies` lists them
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Sample this share of the pages, such as 0.01, and report the error
    #[arg(long, value_name = "RATE")]
    sample: Option<f64>,
    /// Independent samples, from which the error is estimated
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(2..))]
    sample_seeds: u32,
    /// With --sample: also replay the whole trace and report the measured error of the sample
    #[arg(long, requires = "sample")]
    verify: bool,
    /// Write an HTML page with the plot to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    /// Threads to use
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    jobs: usize,
}

/// Curves, and the facts to report about them.
struct Findings {
    info: TraceInfo,
    curves: Vec<Curve>,
    sampling: Option<Sampling>,
}

/// Method by which the curves were sampled.
struct Sampling {
    rate: f64,
    seeds: usize,
    measured: Option<Measured>,
}

/// Runs `ebb lab mrc`.
pub fn run(args: &MrcArgs) -> anyhow::Result<ExitCode> {
    parse_policies(&args.policy)?;
    Settings::parse(&args.set)?;
    if let Some(text) = &args.memory {
        parse_memory(text, 1)?;
    }
    let findings = match args.sample {
        Some(rate) if !(rate > 0.0 && rate <= 1.0) => {
            bail!("--sample {rate}: expected a share of the pages above 0, up to 1, such as 0.01")
        }
        Some(rate) => sampled(args, rate)?,
        None => exact(args)?,
    };
    if let Some(path) = &args.html {
        std::fs::write(path, html(&findings)).with_context(|| path.display().to_string())?;
    }
    print(&match args.format {
        OutputFormat::Text => text(&findings),
        OutputFormat::Csv => csv(&findings),
        OutputFormat::Json => json(&findings),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a trace that is only a part. A curve of page faults would show another program, one that
/// uses little memory. A curve of regions would depend on their boundaries.
fn refuse_part(args: &MrcArgs, lacks: Option<Lack>) -> anyhow::Result<()> {
    if let Some(lack) = lacks {
        let name = args.trace.trace.display().to_string();
        bail!(
            "{}, so a curve would be wrong at every size; `ebb run --sample` and `ebb fit` see accesses to \
             resident pages, too, and valgrind's lackey sees all accesses",
            super::lacking(&name, lack)
        );
    }
    Ok(())
}

fn plan(args: &MrcArgs, pages: u32) -> anyhow::Result<Plan> {
    let policies = parse_policies(&args.policy)?;
    let least = policies.iter().map(|info| info.capacity_min).max().unwrap_or(1);
    let mut sizes = match &args.memory {
        Some(text) => parse_memory(text, pages)?,
        None => spread(pages, args.sizes),
    };
    for size in &mut sizes {
        *size = (*size).max(least);
    }
    sizes.sort_unstable();
    sizes.dedup();
    let settings = Arc::new(Settings::parse(&args.set)?);
    Ok(Plan { policies, sizes, settings, threads: args.jobs })
}

fn exact(args: &MrcArgs) -> anyhow::Result<Findings> {
    let (info, spool) = super::load(&args.trace)?;
    refuse_part(args, spool.lacks())?;
    let plan = plan(args, info.pages)?;
    let progress = Progress::new(plan.replays() * spool.len());
    let curves = plan.exact(&spool, &|part| progress.add(part))?;
    Ok(Findings { info, curves, sampling: None })
}

fn sampled(args: &MrcArgs, rate: f64) -> anyhow::Result<Findings> {
    let samples = draw(&args.trace, Sampler::new(rate, args.sample_seeds))?;
    refuse_part(args, samples.lacks)?;
    if samples.spools.iter().any(|spool| spool.pages() < 10) {
        bail!(
            "--sample {rate}: a sample has fewer than 10 of about {} pages; use a higher rate",
            samples.pages()
        );
    }
    let plan = plan(args, samples.pages().min(u64::from(u32::MAX)) as u32)?;
    let kept: u64 = samples.spools.iter().map(|spool| spool.len()).sum();
    let progress = Progress::new(plan.replays() * kept);
    let curves = plan.sampled(&samples, &|part| progress.add(part))?;
    let name = args.trace.trace.to_string_lossy().into_owned();
    let mut info = TraceInfo { name, accesses: samples.accesses, pages: samples.pages() as u32 };
    let mut measured = None;
    if args.verify {
        let (whole, spool) = super::load(&args.trace)?;
        info = whole;
        let progress = Progress::new(plan.replays() * spool.len());
        measured = Some(measure(&curves, &plan.exact(&spool, &|part| progress.add(part))?));
    }
    let sampling = Sampling { rate: samples.rate, seeds: samples.spools.len(), measured };
    Ok(Findings { info, curves, sampling: Some(sampling) })
}

fn draw(args: &TraceArgs, mut sampler: Sampler) -> anyhow::Result<Samples> {
    let name = args.trace.to_string_lossy();
    let Some(text) = name.strip_prefix(synth::PREFIX) else {
        let mut reader = Reader::open(&args.trace, args.input_format)?;
        return Ok(load_samples(&args.trace, &mut reader, args.accesses, sampler)?);
    };
    let mut synth = Synth::parse(text).with_context(|| name.to_string())?;
    synth.accesses = synth.accesses.min(args.accesses);
    let mut result = Ok(());
    synth.generate(|page| {
        if result.is_ok() {
            result = sampler.push(u64::from(page), Default::default(), Default::default());
        }
    });
    result.context("temporary file")?;
    sampler.finish().context("temporary file")
}

/// Returns the statement of a sampled report about its error.
fn sampling_note(findings: &Findings) -> Option<String> {
    let sampling = findings.sampling.as_ref()?;
    let errors = findings.curves.iter().flat_map(|curve| &curve.points).filter(|p| !p.rough);
    let widest = errors.filter_map(|point| point.error).fold(0.0, f64::max);
    let mut note = format!(
        "Sampled: {} of the pages, {} independent samples. Greatest 95 % interval: ±{:.3} points.",
        percent(sampling.rate),
        sampling.seeds,
        widest * 100.0,
    );
    if findings.curves.iter().flat_map(|curve| &curve.points).any(|point| point.rough) {
        note += " Points marked ~ scale to fewer than 64 pages and are rough.";
    }
    if let Some(measured) = &sampling.measured {
        let _ = write!(
            note,
            " Measured against the whole trace: {:.3} points off on average, {:.3} at worst; \
             {:.0} % of the points within their interval.",
            measured.mean * 100.0,
            measured.worst * 100.0,
            measured.covered * 100.0,
        );
    }
    Some(note)
}

fn summary(info: &TraceInfo) -> String {
    format!(
        "{} accesses to {} pages ({})",
        thousands(info.accesses),
        thousands(u64::from(info.pages)),
        size_of_pages(u64::from(info.pages)),
    )
}

fn text(findings: &Findings) -> String {
    let mut text = format!("{}: {}\n", findings.info.name, summary(&findings.info));
    if let Some(note) = sampling_note(findings) {
        let _ = writeln!(text, "{note}");
    }
    let _ = write!(text, "\n{:>12} {:>10}", "pages", "memory");
    for curve in &findings.curves {
        let _ = write!(text, " {:>11}", curve.policy);
    }
    text.push('\n');
    for (i, first) in findings.curves[0].points.iter().enumerate() {
        let pages = u64::from(first.memory_pages);
        let _ = write!(text, "{:>12} {:>10}", thousands(pages), size_of_pages(pages));
        for curve in &findings.curves {
            let point = curve.points[i];
            let mark = if point.rough { "~" } else { "" };
            let _ = write!(text, " {:>9}", format!("{mark}{:.3}", point.miss_ratio * 100.0));
            text.push_str(" %");
        }
        text.push('\n');
    }
    text
}

fn csv(findings: &Findings) -> String {
    let mut text = String::from("trace,policy,memory_pages,miss_ratio,error,rough\n");
    let trace = field(&findings.info.name);
    for curve in &findings.curves {
        for point in &curve.points {
            let error = point.error.map_or(String::new(), |error| format!("{error:.8}"));
            let _ = writeln!(
                text,
                "{trace},{},{},{:.8},{error},{}",
                curve.policy, point.memory_pages, point.miss_ratio, point.rough
            );
        }
    }
    text
}

fn json(findings: &Findings) -> String {
    let sampling = findings.sampling.as_ref().map(|sampling| {
        json!({ "rate": sampling.rate, "seeds": sampling.seeds, "measured": sampling.measured })
    });
    let document = json!({
        "schema": SCHEMA,
        "trace": findings.info.json(),
        "sampling": sampling,
        "curves": findings.curves,
    });
    format!("{document:#}\n")
}

fn html(findings: &Findings) -> String {
    let series = |curve: &Curve| Series {
        name: curve.policy.to_owned(),
        points: curve
            .points
            .iter()
            .map(|point| (f64::from(point.memory_pages), point.miss_ratio, point.error))
            .collect(),
        is_bound: curve.policy == "belady",
    };
    let chart = Chart {
        x_label: "memory in pages, logarithmic".to_owned(),
        y_label: "miss ratio".to_owned(),
        series: findings.curves.iter().map(series).collect(),
    };
    let path = Path::new(&findings.info.name);
    let name = path.file_name().map_or(findings.info.name.clone().into(), |n| n.to_string_lossy());
    let mut body = format!("<p>{}</p>\n", escape(&summary(&findings.info)));
    if let Some(note) = sampling_note(findings) {
        let _ = writeln!(body, "<p>{}</p>", escape(&note));
    }
    body.push_str(&chart.svg());
    body.push_str(&table(findings));
    page(&format!("Miss ratios: {name}"), &body)
}

fn table(findings: &Findings) -> String {
    let mut html = String::from("<div class=\"table\"><table>\n<tr><th>pages</th><th>memory</th>");
    for curve in &findings.curves {
        let _ = write!(html, "<th>{}</th>", curve.policy);
    }
    html.push_str("</tr>\n");
    for (i, first) in findings.curves[0].points.iter().enumerate() {
        let pages = u64::from(first.memory_pages);
        let (count, size) = (thousands(pages), size_of_pages(pages));
        let _ = write!(html, "<tr><td>{count}</td><td>{size}</td>");
        let contenders = findings.curves.iter().filter(|curve| curve.policy != "belady");
        let best = contenders.map(|c| c.points[i].miss_ratio).fold(f64::INFINITY, f64::min);
        for curve in &findings.curves {
            let point = curve.points[i];
            let is_best = point.miss_ratio <= best && curve.policy != "belady";
            let class = if is_best { " class=\"best\"" } else { "" };
            let mark = if point.rough { "~" } else { "" };
            let ratio = point.miss_ratio * 100.0;
            let _ = write!(html, "<td{class}>{mark}{ratio:.3} %</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n<p>Bold: the fewest misses, the optimum aside.</p>\n");
    html
}
