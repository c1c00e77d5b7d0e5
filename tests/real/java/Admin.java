import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's own mqadmin, command after command in one JVM.
 *
 * Each line on stdin is a JSON list of arguments; each is answered by a line {"event": "output", "text": all that the
 * command printed, both streams}. The program ends when stdin does.
 */
public class Admin {
    public static void main(String[] args) throws Exception {
        PrintStream events = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, "UTF-8");
        PrintStream errors = System.err;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream both = new PrintStream(printed, true, "UTF-8");
            System.setOut(both);
            System.setErr(both);
            try {
                MQAdminStartup.main0(JSON.parseArray(line).toArray(new String[0]), null);
            } catch (Throwable trouble) {
                trouble.printStackTrace(both);
            }
            System.setErr(errors);
            JSONObject event = new JSONObject();
            event.put("event", "output");
            event.put("text", printed.toString("UTF-8"));
            events.println(event.toJSONString());
        }
        System.exit(0);
    }
}
