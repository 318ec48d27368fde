-- Asks outlay whether the team of a job can pay for it, before the job is queued. The prolog of the
-- controller decides again when the job starts, and holds the money.
--
-- Written by `outlay slurm files`. The controller waits for the answer, which must be less than the
-- MessageTimeout of slurm.conf; a job is refused only if outlay says so.

local GATE = "@GATE@"
local PATIENCE_S = 5

local function quoted(value)
  return "'" .. tostring(value or ""):gsub("'", "'\\''") .. "'"
end

-- A number of Slurm; "" if it is not set, or without limit.
local function stated(value)
  if value == nil or value >= 4294967293 then
    return ""
  end
  return string.format("%d", value)
end

local function partition_of(job_desc, part_list)
  for name, part in pairs(part_list) do
    if job_desc.partition == name or (job_desc.partition == nil and part.flag_default == 1) then
      return name, part
    end
  end
  return job_desc.partition or "", {}
end

local function minutes_of(job_desc, part)
  for _, minutes in ipairs({ stated(job_desc.time_limit), stated(part.default_time), stated(part.max_time) }) do
    if minutes ~= "" then
      return minutes
    end
  end
  return ""
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local name, part = partition_of(job_desc, part_list)
  local options = {
    user = job_desc.user_name,
    account = job_desc.account or job_desc.default_account,
    partition = name,
    minutes = minutes_of(job_desc, part),
    nodes = stated(job_desc.min_nodes),
    tasks = stated(job_desc.num_tasks),
    ["per-node"] = job_desc.tres_per_node or job_desc.gres,
    ["per-job"] = job_desc.tres_per_job,
    ["per-task"] = job_desc.tres_per_task,
  }
  local command = "timeout " .. PATIENCE_S .. " " .. quoted(GATE) .. " submit"
  for option, value in pairs(options) do
    if value ~= nil and value ~= "" then
      command = command .. " --" .. option .. "=" .. quoted(value)
    end
  end
  local asked = io.popen(command .. " 2>&1; echo outlay:$?", "r")
  if asked == nil then
    return slurm.SUCCESS
  end
  local said = asked:read("*a") or ""
  asked:close()
  if said:match("outlay:(%d+)%s*$") == "3" then
    slurm.log_user("%s", (said:gsub("%s*outlay:%d+%s*$", "")))
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
